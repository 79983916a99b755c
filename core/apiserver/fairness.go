// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/wasmplane/wasmplane/core/apiserver/priority"
	"github.com/wasmplane/wasmplane/core/run"
)

// fairness gives each request a seat of its priority level, by upstream's API
// priority and fairness: FlowSchemas say which level, and inside a level flows
// take turns. Without it, two plain limits hold.
type fairness struct {
	server   *Server
	control  flowcontrol.Interface
	estimate fcrequest.WorkEstimatorFunc
	dropped  flowcontrol.DroppedRequestsTracker
	wait     time.Duration // how long a request may stand in a queue
}

func newFairness(s *Server, control flowcontrol.Interface) *fairness {
	if control == nil {
		return nil
	}
	return &fairness{
		server: s, control: control, dropped: flowcontrol.NewDroppedRequestsTracker(), wait: min(s.cfg.RequestTimeout/4, time.Minute),
		estimate: fcrequest.NewWorkEstimator(s.stored, control.GetInterestedWatchCount, fcrequest.DefaultWorkEstimatorConfig(),
			control.GetMaxSeats),
	}
}

// stored says how many objects there are of a resource, for estimates of what a
// list costs.
func (s *Server) stored(resource string) (storage.Stats, error) {
	n, ok := s.cfg.Registries.Count(schema.ParseGroupResource(resource))
	if !ok {
		return storage.Stats{}, fcrequest.ObjectCountNotFoundErr
	}
	return storage.Stats{ObjectCount: int64(n)}, nil
}

// seated runs answer once the request has a seat, or refuses it.
func (s *Server) seated(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, who user.Info,
	answer func(*http.Request),
) {
	if longRunning(info) {
		release, err := s.held.Hold(who, req)
		if err != nil {
			s.answers.Fail(w, req, err)
			return
		}
		defer release()
	}
	if s.fairness == nil {
		release, ok := s.admit(info, who)
		if !ok {
			s.refuse(w, req, info, 1)
			return
		}
		defer release()
		answer(req)
		return
	}
	switch {
	case info.Verb == "watch":
		s.fairness.watch(w, req, info, who, answer)
	case longRunning(info):
		answer(req) // streams are bounded by what they are connected to
	default:
		s.fairness.call(w, req, info, who, answer)
	}
}

func (s *Server) refuse(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, after int) {
	s.metrics.Dropped(reading(info.Verb))
	s.answers.Fail(w, req, apierrors.NewTooManyRequests("Too many requests, please try again later.", after))
}

// handle has execute called while the request has its seats; false: it was refused.
func (f *fairness) handle(req *http.Request, info *genericrequest.RequestInfo, who user.Info, c *priority.Class,
	execute func(),
) (served bool) {
	ctx, cancel := context.WithTimeout(req.Context(), f.wait)
	defer cancel()
	f.control.Handle(ctx, flowcontrol.RequestDigest{RequestInfo: info, User: who},
		func(fs *flowcontrolv1.FlowSchema, pl *flowcontrolv1.PriorityLevelConfiguration, _ string) {
			*c = priority.Class{Schema: fs, Level: pl}
		},
		func() fcrequest.WorkEstimate {
			if c.Schema == nil {
				return f.estimate(req, "", "")
			}
			return f.estimate(req, c.Schema.Name, c.Level.Name)
		},
		func(bool) {},
		func() {
			served = true
			running := f.server.running(info)
			running.now.Add(1)
			defer running.now.Add(-1)
			execute()
		})
	return served
}

// running counts what is worked on, for the gauges; it bounds nothing.
func (s *Server) running(info *genericrequest.RequestInfo) *limit {
	if reading(info.Verb) {
		return &s.reads
	}
	return &s.writes
}

func (f *fairness) call(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, who user.Info,
	answer func(*http.Request),
) {
	var c priority.Class
	if !f.handle(req, info, who, &c, func() {
		c.SetHeaders(w.Header())
		answer(req)
	}) {
		f.refuse(w, req, info, &c)
	}
}

func (f *fairness) refuse(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, c *priority.Class) {
	c.SetHeaders(w.Header())
	level := ""
	if c.Level != nil {
		level = c.Level.Name
	}
	f.dropped.RecordDroppedRequest(level)
	f.server.refuse(w, req, info, int(f.dropped.GetRetryAfter(level)))
}

// classify tells the client of a request that is refused before it has a seat which
// class it would have been in, as the client of every other request learns.
func (s *Server) classify(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, who user.Info) {
	if s.fairness != nil && (!longRunning(info) || info.Verb == "watch") {
		c := priority.Find(req.Context(), s.fairness.control, flowcontrol.RequestDigest{RequestInfo: info, User: who})
		c.SetHeaders(w.Header())
	}
}

type watchBegunKey struct{}

// watchBegun tells that a watch has sent what was there when it began: from now on
// it costs next to nothing, and gives its seats back.
func watchBegun(ctx context.Context) {
	if begun, ok := ctx.Value(watchBegunKey{}).(func()); ok {
		begun()
	}
}

// watch has seats until it has sent what was there when it began, as a list has,
// and no longer than any other request may take: a client that does not read keeps
// no seat for ever. They are held by a goroutine that ends then, because a watch
// lives for longer than it may hold them.
func (f *fairness) watch(w http.ResponseWriter, req *http.Request, info *genericrequest.RequestInfo, who user.Info,
	answer func(*http.Request),
) {
	var c priority.Class
	seated, begun := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) })
	var forget flowcontrol.ForgetWatchFunc
	// It ends when the seats are given back, or were refused.
	over := run.Go("fairness: seats of a watch", func() error {
		f.handle(req, info, who, &c, func() {
			forget = f.control.RegisterWatch(req)
			close(seated)
			most := time.NewTimer(f.server.cfg.RequestTimeout)
			defer most.Stop()
			select {
			case <-begun:
			case <-most.C:
			}
		})
		return nil
	})
	defer func() {
		begin() // also where the watch failed before it began
		<-over
		if forget != nil {
			forget()
		}
	}()
	select {
	case <-seated:
	case <-over:
		f.refuse(w, req, info, &c)
		return
	}
	c.SetHeaders(w.Header())
	answer(req.WithContext(context.WithValue(req.Context(), watchBegunKey{}, begin)))
}
