package loader

import (
	"time"

	"github.com/wasmplane/wasmplane/plugins/abi"
	"github.com/wasmplane/wasmplane/plugins/manifest"
)

// Status is what there is to know about one plugin.
type Status struct {
	Name    string        `json:"name"`
	Source  string        `json:"source"`
	Digest  string        `json:"digest,omitempty"`
	Version string        `json:"version,omitempty"`
	Points  []abi.Point   `json:"points,omitempty"`
	Mode    manifest.Mode `json:"mode"`
	// Ready: a version answers. Error is why the last load failed, also where an
	// older version still answers.
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`

	Calls       int64         `json:"calls"`
	Denials     int64         `json:"denials"`
	Failures    int64         `json:"failures"`
	LastFailure string        `json:"lastFailure,omitempty"`
	MeanTime    time.Duration `json:"meanTimeNanoseconds"`
	MeanFuel    int64         `json:"meanFuel"`
	Instances   int           `json:"instances"`
	BreakerOpen bool          `json:"breakerOpen"`
}

// Status lists every plugin, in order.
func (l *Loader) Status() []Status {
	var out []Status
	for _, s := range l.list() {
		stats := &s.plugin.Stats
		st := Status{
			Name: s.entry.Name, Source: s.entry.Source, Mode: s.entry.Mode,
			Calls: stats.Calls.Load(), Denials: stats.Denials.Load(), Failures: stats.Failures.Load(), LastFailure: stats.LastError(),
		}
		if st.Calls > 0 {
			st.MeanTime = time.Duration(stats.Nanoseconds.Load() / st.Calls)
			st.MeanFuel = stats.Fuel.Load() / st.Calls
		}
		if s.err != nil {
			st.Error = s.err.Error()
		}
		if v := s.plugin.Current(); v != nil && v.Module != nil {
			st.Ready, st.Digest, st.Version, st.Points = true, v.Digest, v.Manifest.Version, v.Manifest.Points()
			st.Instances = v.Module.Instances()
			st.BreakerOpen, _ = v.Module.Breaker()
		}
		out = append(out, st)
	}
	return out
}
