//go:build !linux

package chaos

import "syscall"

// endWithParent: without Linux's death signal a killed test process leaves its
// workers behind.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
