// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"fmt"
	"regexp"
	"strings"
)

// What objects say of themselves and of one another is written by whoever may write them: names in owner
// references, messages of events, values of selectors. Operators copy commands into their shells. So a word
// gets into a command only if every shell takes it as it stands, and no program takes it as a flag.

// plain are such words.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:=@,+%][A-Za-z0-9_./:=@,+%-]*$`)

// Words are part of a command that was put together from plain words; "" = from others.
type Words string

// Join puts plain words together.
func Join(words []string, separator string) Words {
	for _, w := range words {
		if !plain.MatchString(w) {
			return ""
		}
	}
	return Words(strings.Join(words, separator))
}

// JSON puts members of a list or map in JSON together, for between single quotes.
func JSON(members []string) Words {
	for _, m := range members {
		if !plain.MatchString(strings.ReplaceAll(m, `"`, "")) {
			return ""
		}
	}
	return Words(strings.Join(members, ","))
}

// Command is a command with words of objects in it; ok is false if one of them is not plain, and
// there is no command then.
func Command(format string, words ...any) (command string, ok bool) {
	for _, w := range words {
		switch w := w.(type) {
		case Words:
			if w == "" {
				return "", false
			}
		case int, int32, int64:
		default:
			if !plain.MatchString(fmt.Sprint(w)) {
				return "", false
			}
		}
	}
	return fmt.Sprintf(format, words...), true
}
