package postgres

import "syscall"

// attributes give the process its user, its own process group (so that Ctrl-C in the
// terminal does not reach it) and SIGINT, Postgres's fast shutdown, when this process ends.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if a.lent {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}
