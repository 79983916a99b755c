// SPDX-License-Identifier: Apache-2.0

package story

import (
	"fmt"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// serveUnit is a program of stories: what systemd would do with a unit of ours.
//
//	supervise UNIT   run ExecStart of the file UNIT, as the settings of the unit that count here say:
//	                 Type=notify, WatchdogSec, Restart=on-failure, KillMode=process
//
// It prints when the process is ready ("READY=1 of PID"), has failed, is killed because it
// was not heard of, and starts again. SIGHUP starts it anew, as systemctl restart does.
func serveUnit() {
	if len(os.Args) != 2 {
		log.Fatal("usage: supervise UNIT")
	}
	u, err := readUnit(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, os.Interrupt)
	for u.once(signals) {
	}
}

// unit is what counts of a unit.
type unit struct {
	command  []string
	watchdog time.Duration
	heard    <-chan string
	socket   string
}

func readUnit(file string) (*unit, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			settings[name] = value
		}
	}
	for name, want := range map[string]string{"Type": "notify", "KillMode": "process", "Restart": "on-failure"} {
		if settings[name] != want {
			return nil, fmt.Errorf("the unit has %s=%s, and this knows only %s", name, settings[name], want)
		}
	}
	u := &unit{command: strings.Fields(settings["ExecStart"])}
	if u.watchdog, err = time.ParseDuration(settings["WatchdogSec"]); err != nil {
		return nil, err
	}
	u.socket = filepath.Join(filepath.Dir(file), "notify")
	u.heard, err = listenNotify(u.socket)
	return u, err
}

func listenNotify(path string) (<-chan string, error) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	heard := make(chan string)
	go func() { // ends with the process
		b := make([]byte, 4096)
		for {
			n, err := socket.Read(b)
			if err != nil {
				log.Fatal(err)
			}
			heard <- string(b[:n])
		}
	}()
	return heard, nil
}

// once runs the process until it ends, and says whether it is to be started again.
func (u *unit) once(signals <-chan os.Signal) (again bool) {
	cmd := exec.Command(u.command[0], u.command[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+u.socket, "WATCHDOG_USEC="+strconv.FormatInt(u.watchdog.Microseconds(), 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		log.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(time.Hour) // until it is ready
	defer timer.Stop()
	stop, restart := false, false
	for {
		select {
		case state := <-u.heard:
			switch state {
			case "READY=1":
				fmt.Printf("READY=1 of %d\n", cmd.Process.Pid)
				timer.Reset(u.watchdog)
			case "WATCHDOG=1":
				timer.Reset(u.watchdog)
			case "STOPPING=1":
				timer.Reset(time.Hour)
			}
		case <-timer.C:
			fmt.Println("not heard of for", u.watchdog, "and killed")
			_ = cmd.Process.Kill()
		case s := <-signals:
			stop, restart = s != syscall.SIGHUP, s == syscall.SIGHUP
			timer.Reset(time.Hour)
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case err := <-ended:
			if stop {
				return false
			}
			fmt.Printf("the process has ended (%v)\n", err)
			return restart || err != nil
		}
	}
}
