package chaos

import "syscall"

// endWithParent ends a worker when the test process ends, however that ends.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
