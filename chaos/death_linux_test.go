package chaos

import "syscall"

// ourDeath makes a worker die with the test process, however that ends.
func ourDeath() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
