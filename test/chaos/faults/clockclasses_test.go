// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/wasmplane/wasmplane/test/internal/harness"
	"github.com/wasmplane/wasmplane/test/internal/stepping"
)

// clockClasses step wall clocks by an hour: that of one process each. Its children, such as containerd, and the clients have
// the true time. Who is connected stays so; a clock that is behind a certificate's beginning refuses new connections.
func clockClasses() []class {
	outage := bounds{failed: unbounded, writes: down, goesOn: down}
	one := bounds{writes: tryFor + elects, goesOn: takesOver}
	stepped := func(choose chooser, ahead time.Duration) func(*world) error {
		return func(w *world) error {
			m, err := choose(w)
			if err != nil {
				return err
			}
			if err := m.setAhead(ahead); err != nil {
				return err
			}
			w.hold(cutFor)
			return m.setAhead(0)
		}
	}
	only := func(w *world) (*machine, error) { return w.first(), nil }
	return []class{
		{"stepped-ahead", "the only server's clock is an hour ahead for 10 s, and right again", clocked, false, stepped(only, time.Hour), bounds{}},
		{"stepped-back", "the only server's clock is an hour behind for 10 s, and right again", clocked, false, stepped(only, -time.Hour), bounds{}},
		{
			"slept-an-hour", "the only server is stopped for 4 s, in which its clock goes on by an hour, as on a laptop that sleeps", clocked, false,
			func(w *world) error {
				m := w.first()
				err := errors.Join(m.signal(syscall.SIGSTOP), m.setAhead(time.Hour))
				w.hold(4 * time.Second)
				err = errors.Join(err, m.signal(syscall.SIGCONT))
				w.hold(cutFor)
				return errors.Join(err, m.setAhead(0))
			},
			bounds{failed: unbounded, writes: 4*time.Second + usualWrites, goesOn: 4*time.Second + usualGoesOn},
		},
		{"away-an-hour", "kill -9 of the only server, which is away for an hour: leases and tokens have ended", clocked, false, awayAnHour, outage},
		{"store-leader-ahead", "the clock of the server whose store leads is an hour ahead for 10 s", manyClocked, false, stepped(storeLeader, time.Hour), one},
		{"store-leader-behind", "the clock of the server whose store leads is an hour behind for 10 s", manyClocked, false, stepped(storeLeader, -time.Hour), one},
		{"scheduler-leader-ahead", "the clock of the server that schedules is an hour ahead for 10 s", manyClocked, false, stepped(leads(scheduling), time.Hour), one},
		{"worker-ahead", "a worker's clock is an hour ahead for 10 s", manyClocked, false, stepped(worker, time.Hour), bounds{}},
		{"worker-behind", "a worker's clock is an hour behind for 10 s", manyClocked, false, stepped(worker, -time.Hour), bounds{}},
		{"all-servers-away-an-hour", "kill -9 of all three servers, which are away for an hour; workers and pods go on", manyClocked, false, allAwayAnHour, bounds{
			failed: unbounded, writes: 3 * down, goesOn: 3 * down,
		}},
	}
}

// setAhead steps the clock of the machine's wasmplane.
func (m *machine) setAhead(by time.Duration) error {
	return stepping.Set(m.process.PID(), m.binary, by)
}

// launchAhead is launch with a clock that is ahead from the program's first moments on.
func (m *machine) launchAhead(w *world, by time.Duration) error {
	if err := m.launch(); err != nil {
		return err
	}
	err := harness.Poll(w.ctx, time.Millisecond, func() error { // until nsenter has become it
		is, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", m.process.PID()))
		if err == nil && filepath.Base(is) != filepath.Base(m.binary) {
			err = errors.New("it is not running yet")
		}
		return err
	})
	return errors.Join(err, m.signal(syscall.SIGSTOP), m.setAhead(by), m.signal(syscall.SIGCONT))
}

// awayAnHour checks what ended meanwhile, too.
func awayAnHour(w *world) error {
	m := w.first()
	token, err := w.token(m)
	if err != nil {
		return err
	}
	if err := errors.Join(w.accepts(m, token, true), m.kill(), m.launchAhead(w, time.Hour)); err != nil {
		return err
	}
	if _, err := m.process.AwaitLine(readyLine); err != nil {
		return err
	}
	next, err := w.token(m)
	err = errors.Join(err, w.accepts(m, token, false), w.accepts(m, next, true))
	w.hold(cutFor)
	return errors.Join(err, m.again())
}

// token is a ServiceAccount's, for ten minutes.
func (w *world) token(m *machine) (string, error) {
	r, err := m.kube.CoreV1().ServiceAccounts(w.names).CreateToken(w.ctx, "default",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(600))}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return r.Status.Token, nil
}

func (w *world) accepts(m *machine, token string, wants bool) error {
	r, err := m.kube.AuthenticationV1().TokenReviews().Create(w.ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err == nil && r.Status.Authenticated != wants {
		err = fmt.Errorf("a token is accepted: %t, %s", r.Status.Authenticated, r.Status.Error)
	}
	return err
}

func allAwayAnHour(w *world) error {
	servers := w.machines[:w.on.servers]
	var problems []error
	for _, m := range servers {
		problems = append(problems, m.kill())
	}
	for _, m := range w.machines[w.on.servers:] {
		problems = append(problems, m.setAhead(time.Hour))
	}
	w.hold(stop)
	for _, m := range servers {
		problems = append(problems, m.launchAhead(w, time.Hour))
	}
	for _, m := range servers {
		_, err := m.process.AwaitLine(readyLine)
		problems = append(problems, err)
	}
	w.hold(cutFor)
	for _, m := range w.machines {
		problems = append(problems, m.setAhead(0))
	}
	return errors.Join(problems...)
}
