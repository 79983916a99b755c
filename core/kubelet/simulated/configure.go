package simulated

import (
	"github.com/wasmplane/wasmplane/core/kubelet"
)

// Configure makes the kubelet of c a simulated one: whatever else c says stays.
// The network is shared by all nodes of the cluster.
func Configure(c *kubelet.Config, n *Network, g GroundConfig) error {
	e, err := New(Config{Network: n})
	if err != nil {
		return err
	}
	if g.Name == "" {
		g.Name = c.NodeName
	}
	g.Engine = e
	c.Engine, c.Ground, c.Volumes, c.Handler = e, NewGround(g), Volumes{}, Handler{}
	if c.Node.Labels == nil {
		c.Node.Labels = map[string]string{}
	}
	c.Node.Labels["wasmplane.dev/simulated"] = "true"
	return nil
}
