// SPDX-License-Identifier: Apache-2.0

package apiobject

import (
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/wasmplane/wasmplane/plugins/loader"
)

// quietFor is how long a plugin of which nothing is new is left alone: then it is looked whether its
// writer's rights, or the processes that report of it, are others now.
const quietFor = 30 * time.Second

// quiet is what a plugin was like when there was nothing to write about it. Most plugins are the same at
// most looks, and to make and compare whole statuses of hundreds every second would be most of what a
// process at rest does.
type quiet struct {
	version  string // of the object
	loaded   bool
	status   loader.Status
	counters bool // they were compared too
	at       time.Time
}

// still says whether there is nothing new.
func (q quiet) still(o metav1.Object, s loader.Status, loaded, counters bool, now time.Time) bool {
	if q.at.IsZero() || now.Sub(q.at) >= quietFor || q.version != o.GetResourceVersion() || q.loaded != loaded || counters && !q.counters {
		return false
	}
	if !counters {
		return reflect.DeepEqual(stable(q.status), stable(s))
	}
	s.MeanTime, s.MeanFuel, s.Instances = q.status.MeanTime, q.status.MeanFuel, q.status.Instances
	return reflect.DeepEqual(q.status, s)
}

// stable is a status without what changes with every call.
func stable(s loader.Status) loader.Status {
	s.Calls, s.Denials, s.Failures, s.LastFailure, s.MeanTime, s.MeanFuel, s.Instances = 0, 0, 0, "", 0, 0, 0
	if s.Candidate != nil {
		s.Candidate = &loader.CandidateStatus{
			Digest: s.Candidate.Digest, Version: s.Candidate.Version, Ready: s.Candidate.Ready, Error: s.Candidate.Error,
		}
	}
	return s
}
