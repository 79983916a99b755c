package loader

import (
	"github.com/wasmplane/wasmplane/core/admission"
	"github.com/wasmplane/wasmplane/plugins/point"
	pointadmission "github.com/wasmplane/wasmplane/plugins/point/admission"
)

// adapters are a plugin's faces at the points of core.
type adapters struct {
	admission admission.Plugin
}

// adapt makes the adapters that the version in force calls for.
func (l *Loader) adapt(p *point.Plugin, _ adapters) adapters {
	return adapters{admission: pointadmission.New(p, l.cfg.Namespaces)}
}
