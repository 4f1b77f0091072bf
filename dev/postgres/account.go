package postgres

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that Postgres runs as. It refuses to run as root: then another
// user of the machine is used.
type account struct {
	name     string
	uid, gid int
	lent     bool // we are root, and it is another user
}

func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		return account{name: name, uid: uid, gid: gid, lent: true}, nil
	}
	return account{}, errors.New("postgres does not run as root, and this machine has neither a user postgres nor nobody: " +
		"start as another user")
}

// takeFolder makes a folder, if it is missing, that belongs to the account
// alone. A folder or a link of another user is refused.
func (a account) takeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check the cluster's folder: %w", err)
	}
	uid, _ := owner(info)
	if !info.IsDir() || (uid != os.Geteuid() && uid != a.uid) {
		return fmt.Errorf("%s is not a folder of ours: remove it or choose another", dir)
	}
	if blocked := a.blockedAt(filepath.Dir(dir)); blocked != "" {
		return fmt.Errorf("user %s cannot enter %s; postgres runs as that user because it cannot run as root", a.name, blocked)
	}
	if a.lent {
		if err := os.Chown(dir, a.uid, a.gid); err != nil {
			return fmt.Errorf("give the cluster's folder to %s: %w", a.name, err)
		}
	}
	return os.Chmod(dir, 0o700)
}

// blockedAt is the first folder on the way to dir, dir included, that the
// account may not enter; empty if it can go all the way.
func (a account) blockedAt(dir string) string {
	if parent := filepath.Dir(dir); parent != dir {
		if blocked := a.blockedAt(parent); blocked != "" {
			return blocked
		}
	}
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "" // to be made by us
	}
	if err != nil || !a.mayEnter(info) {
		return dir
	}
	return ""
}

func (a account) mayEnter(info fs.FileInfo) bool {
	uid, gid := owner(info)
	switch mode := info.Mode().Perm(); {
	case uid == a.uid:
		return mode&0o100 != 0
	case gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

func owner(info fs.FileInfo) (uid, gid int) {
	stat := info.Sys().(*syscall.Stat_t)
	return int(stat.Uid), int(stat.Gid)
}

// homeFor is the folder for a cluster: dir itself, unless the account cannot
// get there (other users cannot enter the home of root). Then it is a private
// folder for temporary files named after dir, and moved is the reason.
func (a account) homeFor(dir string) (home, moved string) {
	blocked := a.blockedAt(filepath.Dir(dir))
	if blocked == "" {
		return dir, ""
	}
	home = shortName(dir)
	return home, fmt.Sprintf("user %s cannot enter %s, and Postgres runs as that user because it cannot run as root: "+
		"the data is in %s", a.name, blocked, home)
}

// socketFolder is where the socket goes: beside the data, unless its path
// would not fit into the 107 bytes that a socket's address has.
func socketFolder(a account, dir string) (string, error) {
	if len(filepath.Join(dir, ".s.PGSQL.5432.lock")) < 108 {
		return dir, nil
	}
	short := shortName(dir)
	return short, a.takeFolder(short)
}

// shortName is a folder for temporary files that belongs to dir and no other.
func shortName(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(os.TempDir(), fmt.Sprintf("lemma-%d-%x", os.Geteuid(), sum[:6]))
}
