package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// The lines are those of the golden vectors of package abtest.
func TestAssignRecomputesAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("1\nanna\r\nprofile-1000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := func(string) (string, bool) { return "", false }
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--experiment=itr_1", "--weights=50,30,20", "--names=A,B,C", "--sample-percent=20", "--holdout-percent=5"},
			"profile_key,group,variant,holdout_bucket,sample_bucket,variant_bucket\n" +
				"1,rest,,2320,7529,38\nanna,sample,A,7054,345,38\nprofile-1000000,sample,B,1837,402,57\n"},
		{[]string{"--salt=spring", "--weights=1,1,8"}, "profile_key,variant,bucket\n1,2,5\nanna,2,2\nprofile-1000000,2,4\n"},
	} {
		var out bytes.Buffer
		if err := Run(context.Background(), append([]string{"abtest", "assign", file}, c.args...), env, &out); err != nil ||
			out.String() != c.want {
			t.Errorf("%v: %v\n%s", c.args, err, out.String())
		}
	}
	for _, args := range [][]string{{"--weights=1,1"}, {"--salt=x", "--weights=0"}, {"--salt=x", "--weights=1", "--names=A,B"},
		{"--salt=x", "--experiment=y", "--weights=1"}, {"--experiment=y", "--weights=1", "--sample-percent=101"},
		{"--salt=x", "--weights=-1,2"}} {
		if err := Run(context.Background(), append([]string{"abtest", "assign", file}, args...), env, &bytes.Buffer{}); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
