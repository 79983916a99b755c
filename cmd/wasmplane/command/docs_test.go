// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/wasmplane/wasmplane/core/config"
)

// documents are what users read: the pages at the root and every page of docs.
func documents(t *testing.T) map[string]string {
	t.Helper()
	const root = "../../.."
	var files []string
	for _, pattern := range []string{
		"[A-Z]*.md", "docs/*.md", "docs/*/*.md", "wasm-examples/README.md", "wasm-examples/*/README.md",
		"sdk/README.md",
	} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	texts := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[strings.TrimPrefix(f, root+"/")] = string(b)
	}
	return texts
}

// blocks are the fenced blocks of a language.
func blocks(text, language string) (out []string) {
	for _, b := range strings.Split(text, "```"+language+"\n")[1:] {
		b, _, _ = strings.Cut(b, "```")
		out = append(out, b)
	}
	return out
}

var (
	// A command's words end where the shell's own begin, or a comment.
	callInBlock = regexp.MustCompile("(?:^|[\\s(|&])(?:bin/)?wasmplane ([^|&;<>()#\n]+)")
	callInLine  = regexp.MustCompile("`(?:bin/)?wasmplane ([^`|]+)`")
	flagName    = regexp.MustCompile(`(?:^|[\s\[])--([a-z][a-z-]+)`)
)

// TestWhatTheDocumentsCallExists: each command that a document shows is one of ours, and
// has the flags.
func TestWhatTheDocumentsCallExists(t *testing.T) {
	for _, wrong := range []string{"node join", "plugin frobnicate NAME", "up --nodez simulated:3", "trace pod/web --follow"} {
		if unknownIn(strings.Fields(wrong), wrong) == "" {
			t.Fatalf("wasmplane %s is taken for a command that there is", wrong)
		}
	}
	calls := 0
	for file, text := range documents(t) {
		var found []string
		for _, b := range blocks(text, "sh") {
			for _, m := range callInBlock.FindAllStringSubmatch(strings.ReplaceAll(b, "\\\n", " "), -1) {
				found = append(found, m[1])
			}
		}
		for _, m := range callInLine.FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		for _, call := range found {
			words := strings.Fields(call)
			if len(words) == 0 || words[0] == "kubectl" || words[0] == "..." { // which has a tree of its own
				continue
			}
			calls++
			if problem := unknownIn(words, call); problem != "" {
				t.Errorf("%s: wasmplane %s: %s", file, strings.TrimSpace(call), problem)
			}
		}
	}
	if calls < 50 {
		t.Errorf("only %d commands were found in all documents", calls)
	}
}

// unknownIn says what of a call there is not.
func unknownIn(words []string, call string) string {
	c, rest, err := newRoot(io.Discard, io.Discard).Find(words)
	if err != nil {
		return err.Error()
	}
	if c.HasSubCommands() && !strings.Contains(c.Use, " ") && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && rest[0] != "..." {
		return "no such command"
	}
	for _, m := range flagName.FindAllStringSubmatch(call, -1) {
		if !has(c, m[1]) {
			return "no flag --" + m[1]
		}
	}
	return ""
}

func has(c *cobra.Command, flag string) bool {
	return flag == "help" || c.Flags().Lookup(flag) != nil || c.InheritedFlags().Lookup(flag) != nil
}

// TestConfigurationsInTheDocumentsAreTaken: each block that is a configuration, or a part of one.
func TestConfigurationsInTheDocumentsAreTaken(t *testing.T) {
	const head = "apiVersion: wasmplane.dev/v1alpha1\nkind: Configuration\n"
	sections := map[string]bool{
		"cluster": true, "store": true, "apiserver": true, "scheduler": true, "controllers": true, "node": true,
		"plugins": true,
	}
	taken := 0
	for file, text := range documents(t) {
		for _, b := range blocks(text, "yaml") {
			var first yaml.Node
			if err := yaml.NewDecoder(bytes.NewReader([]byte(b))).Decode(&first); err != nil {
				t.Errorf("%s: %v in\n%s", file, err, b)
				continue
			}
			top := first.Content[0]
			if top.Kind != yaml.MappingNode {
				continue
			}
			ours, headed := false, false
			for i := 0; i < len(top.Content); i += 2 {
				ours = ours || sections[top.Content[i].Value] && !headed
				headed = headed || top.Content[i].Value == "apiVersion"
			}
			switch {
			case strings.Contains(b, "apiVersion: wasmplane.dev/"):
			case ours && !headed:
				b = head + b
			default:
				continue
			}
			taken++
			if _, err := config.Load(file, []byte(b)); err != nil {
				t.Errorf("%v in\n%s", err, b)
			}
		}
	}
	if taken < 20 {
		t.Errorf("only %d configurations were found in all documents", taken)
	}
}
