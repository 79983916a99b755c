// SPDX-License-Identifier: Apache-2.0

package javascript

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/evanw/esbuild/pkg/api"
)

// bundle is a plugin's script, with everything that it imports.
type bundle struct {
	script []byte
	// sources are the files that it is made of, relative to the plugin's folder.
	sources []string
	// origins say of each line of the script which source and line it comes from; a source
	// of -1 is none of the author's.
	origins [][2]int32
}

// entry is the module that the bundle begins with. It is evaluated last.
const entry = `import plugin from %q; import { start } from "wasmplane/glue"; start(plugin);`

// pack bundles the source and what it imports; library is the folder of the SDK.
func pack(dir, main, library string) (*bundle, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	r := api.Build(api.BuildOptions{
		Stdin:         &api.StdinOptions{Contents: fmt.Sprintf(entry, "./"+main), ResolveDir: dir, Sourcefile: "<wasmplane>"},
		AbsWorkingDir: dir,
		Bundle:        true,
		Format:        api.FormatESModule,
		Platform:      api.PlatformNeutral,
		MainFields:    []string{"module", "main"},
		Conditions:    []string{"import", "module", "default"},
		Target:        api.ES2023,
		Charset:       api.CharsetUTF8,
		LegalComments: api.LegalCommentsNone,
		Plugins:       []api.Plugin{fromLibrary(library)},
		Sourcemap:     api.SourceMapExternal,
		Outfile:       filepath.Join(dir, "plugin.js"),
		LogLevel:      api.LogLevelSilent,
	})
	if len(r.Errors) > 0 {
		for i, m := range r.Errors {
			if strings.HasPrefix(m.Text, "Could not resolve") && strings.Contains(fmt.Sprint(m.Notes), "built into node") {
				r.Errors[i].Notes = []api.Note{{Text: "A plugin has no files, no network and no timers: what it may ask of its host is in `host` of \"wasmplane\"."}}
			}
		}
		return nil, errors.New(strings.TrimSpace(strings.Join(api.FormatMessages(r.Errors, api.FormatMessagesOptions{Kind: api.ErrorMessage}),
			"\n")))
	}
	b := &bundle{}
	for _, f := range r.OutputFiles {
		if !strings.HasSuffix(f.Path, ".map") {
			b.script = f.Contents
			continue
		}
		if err := b.readMap(f.Contents); err != nil {
			return nil, fmt.Errorf("the bundle's source map: %w", err)
		}
	}
	return b, nil
}

// fromLibrary finds the SDK's files in its folder. They have names of their own in the bundle, so
// that the same plugin becomes the same module wherever the SDK lies.
func fromLibrary(library string) api.Plugin {
	const namespace = "wasmplane"
	files := map[string]string{"wasmplane": "index.js", "wasmplane/glue": "glue.js", "./glue.js": "glue.js"}
	return api.Plugin{Name: namespace, Setup: func(b api.PluginBuild) {
		find := func(a api.OnResolveArgs) (api.OnResolveResult, error) {
			return api.OnResolveResult{Path: files[a.Path], Namespace: namespace}, nil
		}
		b.OnResolve(api.OnResolveOptions{Filter: `^wasmplane(/glue)?$`}, find)
		b.OnResolve(api.OnResolveOptions{Filter: `^\./glue\.js$`, Namespace: namespace}, find)
		b.OnLoad(api.OnLoadOptions{Filter: `.*`, Namespace: namespace}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			content, err := os.ReadFile(filepath.Join(library, a.Path))
			text := string(content)
			return api.OnLoadResult{Contents: &text, Loader: api.LoaderJS}, err
		})
	}}
}

// readMap reads a source map (ECMA-426): of each line, where its first part comes from.
func (b *bundle) readMap(data []byte) error {
	var m struct {
		Sources  []string `json:"sources"`
		Mappings string   `json:"mappings"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return err
	}
	b.sources = m.Sources
	own := make([]bool, len(m.Sources))
	for i, s := range m.Sources {
		own[i] = !strings.HasPrefix(s, "wasmplane:") && s != "<wasmplane>"
	}
	var source, line int32
	for generated := range strings.SplitSeq(m.Mappings, ";") {
		at := [2]int32{-1, 0}
		for segment := range strings.SplitSeq(generated, ",") {
			fields, err := decodeVLQ(segment)
			if err != nil {
				return err
			}
			if len(fields) < 4 {
				continue
			}
			source, line = source+fields[1], line+fields[2]
			if int(source) >= len(own) || source < 0 {
				return fmt.Errorf("source %d of %d", source, len(own))
			}
			if at[0] < 0 && own[source] {
				at = [2]int32{source, line + 1}
			}
		}
		b.origins = append(b.origins, at)
	}
	return nil
}

const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

// decodeVLQ reads the numbers of a segment: six bits a digit, the lowest first, the sign
// lowest of all.
func decodeVLQ(s string) (out []int32, err error) {
	value, shift := int64(0), 0
	for _, c := range []byte(s) {
		digit := strings.IndexByte(base64Digits, c)
		if digit < 0 || shift > 30 {
			return nil, fmt.Errorf("%q is no mapping", s)
		}
		value |= int64(digit&31) << shift
		shift += 5
		if digit&32 != 0 {
			continue
		}
		n := int32(value >> 1)
		if value&1 != 0 {
			n = -n
		}
		out = append(out, n)
		value, shift = 0, 0
	}
	return out, nil
}

// input is the bundle in the form that the runtime's evaluate takes.
func (b *bundle) input() []byte {
	table := make([]byte, 0, 8*len(b.origins))
	for _, o := range b.origins {
		table = binary.LittleEndian.AppendUint32(table, uint32(o[0]))
		table = binary.LittleEndian.AppendUint32(table, uint32(o[1]))
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(b.script)))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(table)))
	out = append(out, table...)
	for _, s := range b.sources {
		out = append(append(out, s...), 0)
	}
	return append(append(append(out, 0), b.script...), 0)
}
