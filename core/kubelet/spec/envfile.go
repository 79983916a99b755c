// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fileKey is one variable of a file; not ok if it is to be left out.
func (r *EnvRequest) fileKey(ref *corev1.FileKeySelector) (string, bool, error) {
	optional := ref.Optional != nil && *ref.Optional
	data, err := r.File(ref.VolumeName, ref.Path)
	if errors.Is(err, fs.ErrNotExist) && optional {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("couldn't read file %q of volume %q: %w", ref.Path, ref.VolumeName, err)
	}
	v, err := envFile(string(data), ref.Key)
	switch {
	case err != nil:
		return "", false, fmt.Errorf("couldn't parse env file %q of volume %q: %w", ref.Path, ref.VolumeName, err)
	case v != "":
		return v, true, nil
	case optional:
		return "", false, nil
	}
	return "", false, fmt.Errorf("environment variable key %q not found in file %q", ref.Key, ref.Path)
}

// envFile is the value of a variable in a file as fileKeyRef has it (KEP-3721): a part of the shell's syntax that every
// shell reads the same way. Lines are KEY='value', a value may go on over several lines, there may be empty lines and
// comments. It is "" where the variable is not there. What comes after the variable is not looked at.
func envFile(text, key string) (string, error) {
	number := 0
	next := func() (string, bool) {
		if text == "" {
			return "", false
		}
		var line string
		line, text, _ = strings.Cut(text, "\n")
		number++
		return strings.TrimSuffix(line, "\r"), true
	}
	for line, ok := next(); ok; line, ok = next() {
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		began := number
		name, rest, found := strings.Cut(line, "=")
		if !found || name == "" || strings.ContainsAny(name, " \t") {
			return "", fmt.Errorf("line %d: expected KEY='value', without spaces before the equals sign", began)
		}
		if strings.TrimLeft(rest, " \t") != rest { // to a shell, the value is empty
			if name == key {
				return "", nil
			}
			continue
		}
		rest, found = strings.CutPrefix(rest, "'")
		if !found {
			return "", fmt.Errorf("line %d: expected the value of %s in single quotes", began, name)
		}
		var value strings.Builder
		for {
			part, after, closed := strings.Cut(rest, "'")
			value.WriteString(part)
			if closed {
				if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
					return "", fmt.Errorf("line %d: expected nothing after the closing quote", number)
				}
				break
			}
			value.WriteByte('\n')
			if rest, ok = next(); !ok {
				return "", fmt.Errorf("line %d: the quote is not closed", began)
			}
		}
		if name == key {
			return value.String(), nil
		}
	}
	return "", nil
}
