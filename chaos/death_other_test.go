//go:build !linux

package chaos

import "syscall"

// ourDeath: without Linux's death signal a killed test process leaves its
// workers behind.
func ourDeath() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
