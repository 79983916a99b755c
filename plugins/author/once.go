package author

import (
	"context"
	"errors"
	"time"
)

// Once loads a plugin, asks it one question and unloads it.
func Once(ctx context.Context, cfg Config, c *Case) (d *Decision, err error) {
	cfg.Entry = withSettings(cfg.Entry, c.Settings)
	if cfg.Objects == nil {
		fixed, err := newObjects(c.Objects)
		if err != nil {
			return nil, err
		}
		cfg.Objects, cfg.Namespaces = fixed, fixed.namespaces
	}
	p, err := Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	return c.Ask(ctx, p)
}

// MeasureAll measures a plugin's calls for each of some cases.
func MeasureAll(ctx context.Context, cfg Config, cases []Case, d time.Duration) (out []*Bench, err error) {
	r := &runner{cfg: cfg, open: map[string]*opened{}}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	for i := range cases {
		c := &cases[i]
		o, err := r.with(ctx, c.Settings)
		if err != nil {
			return nil, err
		}
		if o.objects.objects, err = newObjects(c.Objects); err != nil {
			return nil, err
		}
		b, err := Measure(ctx, o.Plugin, c, d)
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, nil
}
