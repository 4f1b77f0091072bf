//go:build !linux

package postgres

import "syscall"

// attributes give the process its user and a process group of its own. Without
// Linux's death signal a killed parent leaves the postmaster behind; the next
// Start then fails because the folder's lock file exists.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a.lent {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}
