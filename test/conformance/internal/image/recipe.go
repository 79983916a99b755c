// SPDX-License-Identifier: Apache-2.0

package image

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
)

// made is another number when images of the same specs become others.
const made = 2

// Recipe identifies what images are made of: their specs, and the size and age of
// the files that these name. Debian's packages it knows by name only.
func Recipe(specs []Spec) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, made)
	if err := json.NewEncoder(h).Encode(specs); err != nil {
		return "", fmt.Errorf("write down what images are made of: %w", err)
	}
	for _, s := range specs {
		for _, files := range [][]File{s.Base, s.Rest, s.Top} {
			for _, f := range files {
				if f.From == "" {
					continue
				}
				info, err := os.Stat(f.From)
				if err != nil {
					return "", fmt.Errorf("image %s: %w", s.Names[0], err)
				}
				fmt.Fprintln(h, f.From, info.Size(), info.ModTime().UnixNano())
			}
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6]), nil
}
