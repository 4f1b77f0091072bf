package postgres

import "syscall"

// attributes give the process its user, a process group of its own (Ctrl-C in
// the terminal is for us, and we stop it in order) and a signal at our death:
// SIGINT, Postgres's fast shutdown.
func (a account) attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if a.lent {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}
