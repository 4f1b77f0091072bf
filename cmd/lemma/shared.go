package main

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"lemma/blobs"
	"lemma/secrets"
	"lemma/settings"
)

// shared are the values of the settings that must be equal in all processes, and with works
// also those that must be in all workers. Secrets have fingerprints. What is not set is left
// out.
func (c Config) shared(works bool) map[string]string {
	all := map[string]string{}
	for f := range fields() {
		if who := f.Tag.Get("shared"); who == "all" || who == "workers" && works {
			all[f.Tag.Get("var")] = fmt.Sprint(reflect.ValueOf(c).FieldByIndex(f.Index))
		}
	}
	all["LEMMA_BLOBS"] = blobs.Location(c.Blobs)
	all["LEMMA_SECRET_KEY"] = secrets.Fingerprints(c.SecretKey)
	for name, value := range all {
		if value == "" {
			delete(all, name)
		}
	}
	return all
}

// settingFindings describes the public URL and compares the settings of all processes.
func settingFindings(ctx context.Context, c Config, pool *pgxpool.Pool) (list []finding, err error) {
	all, err := settings.List(ctx, pool)
	if err != nil {
		return nil, err
	}
	urls, err := publicURLFindings(ctx, c, pool, all)
	if err != nil {
		return nil, err
	}
	others, err := sharedFindings(all)
	return append(urls, others...), err
}

// sharedFindings compares the settings of the processes that run. It warns of values that
// count although the processes with them have ended.
func sharedFindings(all []settings.Stored) (list []finding, err error) {
	for f := range fields() {
		name := f.Tag.Get("var")
		if f.Tag.Get("shared") == "" || name == settings.PublicURL {
			continue
		}
		var used []string
		for _, s := range settings.Of(all, name) {
			if s.InUse {
				used = append(used, s.Value)
			}
		}
		if len(used) > 1 {
			list = append(list, finding{"warn", name, "processes have different values: " + strings.Join(used, "; ")})
		}
		ended, err := counts(all, name)
		if err != nil {
			return nil, err
		}
		if ended != nil && len(used) > 0 && !ended.InUse {
			list = append(list, finding{"warn", name, fmt.Sprintf("%s counts, which a process had until %s: if none will have it again, run "+
				"lemma settings remove %s %s", ended.Value, ended.SeenAt.UTC().Format(time.RFC3339), name, ended.Value)})
		}
	}
	if len(list) == 0 {
		list = []finding{{"ok", "settings", "those of all processes that run are equal"}}
	}
	return list, nil
}

// counts returns the value that decides what is deleted, whichever processes run; nil without
// one.
func counts(all []settings.Stored, name string) (*settings.Stored, error) {
	switch name {
	case "LEMMA_NOTIFICATION_RETENTION", "LEMMA_PROVIDER_EVENT_RETENTION", "LEMMA_BATCH_LOG_RETENTION", "LEMMA_ENROLLMENT_STEP_RETENTION",
		"LEMMA_EVENT_RETENTION":
		longest, _, err := settings.Longest(all, name)
		return longest, err
	case "LEMMA_ARCHIVE":
		for _, s := range settings.Of(all, name) {
			if s.Value == "true" {
				return &s, nil
			}
		}
	}
	return nil, nil
}
