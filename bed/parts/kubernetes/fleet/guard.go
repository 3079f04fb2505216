package main

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// guard runs a program until the guard's standard input is closed, that is, until
// the process that started the guard has ended in any way. With -keep only a
// signal ends the program.
func guard(arguments []string) error {
	keep := len(arguments) > 0 && arguments[0] == "-keep"
	if keep {
		arguments = arguments[1:]
	}
	if len(arguments) == 0 {
		return errors.New("no program was given")
	}
	// Pdeathsig is sent when the thread ends: it must live as long as this process.
	runtime.LockOSThread()
	program := exec.Command(arguments[0], arguments[1:]...)
	program.Stdout, program.Stderr = os.Stdout, os.Stderr
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := program.Start(); err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if !keep {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop <- syscall.SIGTERM
		}()
	}
	go func() {
		<-stop
		_ = program.Process.Signal(syscall.SIGTERM)
		time.Sleep(5 * time.Second)
		_ = program.Process.Kill()
	}()
	err := program.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(max(exit.ExitCode(), 1))
	}
	return err
}
