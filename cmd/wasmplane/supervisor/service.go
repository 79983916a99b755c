// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"unicode"
)

// Service is a process of wasmplane that is started at boot.
type Service struct {
	// Name of the service.
	Name string
	// Command is the program with its arguments, by absolute paths.
	Command []string
	// Dir is the data directory, for who removes the service; "" = it is of a package, and
	// no command's to remove.
	Dir string
}

// Packaged is the service of the packages and archives of a release.
func Packaged() Service {
	return Service{Name: "wasmplane", Command: []string{
		"/usr/bin/wasmplane", "up", "--config", "/etc/wasmplane/config.yaml", "--data-dir",
		"/var/lib/wasmplane",
	}}
}

// PackagedUnit is the text of that service for systemd.
func PackagedUnit() ([]byte, error) { return Packaged().systemd() }

// mark is what a file has by which it is known as written by Install. The data directory follows.
const mark = "# Written by `wasmplane install`, removed by `wasmplane uninstall`. Data directory: "

//go:embed systemd.service
var systemdText string

//go:embed openrc.text
var openRCText string

func (s Service) systemd() ([]byte, error) { return s.fill(systemdText, systemdWord, systemdLine) }

func (s Service) openRC() ([]byte, error) {
	return s.fill(openRCText, shellWord, func(words []string) string {
		// OpenRC hands the words to a shell once more.
		return shellDouble(strings.Join(words, " "))
	})
}

// fill makes the text of a template, in which word writes one word of the command and line
// its arguments.
func (s Service) fill(text string, word func(string) string, line func([]string) string) ([]byte, error) {
	for _, part := range append([]string{s.Dir}, s.Command...) {
		if strings.ContainsFunc(part, unicode.IsControl) {
			return nil, fmt.Errorf("%q has control characters, which no service's command can have", part)
		}
	}
	t, err := template.New("").Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the service's template: %w", err)
	}
	var words []string
	for _, w := range s.Command[1:] {
		words = append(words, word(w))
	}
	head := ""
	if s.Dir != "" {
		head = mark + s.Dir + "\n"
	}
	what := "control plane and node"
	if s.Command[1] == "agent" {
		what = "node"
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]string{
		"Mark": head, "What": what, "Name": s.Name, "Program": word(s.Command[0]), "Arguments": line(words),
	})
	return b.Bytes(), err
}

func systemdLine(words []string) string { return strings.Join(words, " ") }

// systemdWord quotes a word of a command line as systemd.service(5) and systemd.unit(5) say.
func systemdWord(w string) string {
	w = strings.NewReplacer("%", "%%", "$", "$$").Replace(w)
	if w != "" && !strings.ContainsAny(w, " \"'\\;") {
		return w
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(w) + `"`
}

// shellWord quotes a word for a shell.
func shellWord(w string) string {
	plain := func(r rune) bool {
		return r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("-_./:=,@+", r))
	}
	if w != "" && !strings.ContainsFunc(w, func(r rune) bool { return !plain(r) }) {
		return w
	}
	return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
}

// shellDouble makes a text what stands between double quotes of a shell.
func shellDouble(text string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "`", "\\`").Replace(text)
}
