// SPDX-License-Identifier: Apache-2.0

package loader

import "github.com/wasmplane/wasmplane/plugins/point"

// Plugin is the plugin of an entry by its name, for tools that ask it without a
// cluster; nil where there is none.
func (l *Loader) Plugin(name string) *point.Plugin {
	for _, s := range l.list() {
		if s.entry.Name == name {
			return s.plugin
		}
	}
	return nil
}
