//go:build !linux

package chaos

import "syscall"

// dieWithParent: without Linux's death signal a killed test process leaves its
// workers behind.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
