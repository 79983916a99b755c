// SPDX-License-Identifier: Apache-2.0

package wat

import (
	"fmt"
	"strconv"
	"strings"
)

// node is an atom, a string or a list.
type node struct {
	line   int
	atom   string
	str    []byte
	isStr  bool
	list   []node
	isList bool
}

func (n node) head() string {
	if n.isList && len(n.list) > 0 {
		return n.list[0].atom
	}
	return ""
}

func (n node) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", n.line, fmt.Sprintf(format, args...))
}

type lexer struct {
	s    string
	pos  int
	line int
}

func parse(source string) ([]node, error) {
	l := &lexer{s: source, line: 1}
	nodes, err := l.list(false)
	if err != nil {
		return nil, err
	}
	return nodes, nil
}

func (l *lexer) space() {
	for l.pos < len(l.s) {
		switch {
		case l.s[l.pos] == '\n':
			l.line++
			l.pos++
		case l.s[l.pos] == ' ' || l.s[l.pos] == '\t' || l.s[l.pos] == '\r':
			l.pos++
		case strings.HasPrefix(l.s[l.pos:], ";;"):
			for l.pos < len(l.s) && l.s[l.pos] != '\n' {
				l.pos++
			}
		case strings.HasPrefix(l.s[l.pos:], "(;"):
			end := strings.Index(l.s[l.pos:], ";)")
			if end < 0 {
				end = len(l.s) - l.pos - 2
			}
			l.line += strings.Count(l.s[l.pos:l.pos+end], "\n")
			l.pos += end + 2
		default:
			return
		}
	}
}

func (l *lexer) list(nested bool) ([]node, error) {
	var out []node
	for {
		l.space()
		if l.pos >= len(l.s) {
			if nested {
				return nil, fmt.Errorf("line %d: a parenthesis is not closed", l.line)
			}
			return out, nil
		}
		n := node{line: l.line}
		switch c := l.s[l.pos]; c {
		case ')':
			if !nested {
				return nil, fmt.Errorf("line %d: a parenthesis too many", l.line)
			}
			l.pos++
			return out, nil
		case '(':
			l.pos++
			inner, err := l.list(true)
			if err != nil {
				return nil, err
			}
			n.list, n.isList = inner, true
		case '"':
			s, err := l.str()
			if err != nil {
				return nil, err
			}
			n.str, n.isStr = s, true
		default:
			start := l.pos
			for l.pos < len(l.s) && !strings.ContainsRune(" \t\r\n()\";", rune(l.s[l.pos])) {
				l.pos++
			}
			if l.pos == start {
				return nil, fmt.Errorf("line %d: unexpected %q", l.line, c)
			}
			n.atom = l.s[start:l.pos]
		}
		out = append(out, n)
	}
}

func (l *lexer) str() ([]byte, error) {
	var out []byte
	l.pos++
	for l.pos < len(l.s) {
		c := l.s[l.pos]
		l.pos++
		switch {
		case c == '"':
			return out, nil
		case c == '\\' && l.pos < len(l.s):
			e := l.s[l.pos]
			l.pos++
			switch e {
			case 'n':
				out = append(out, '\n')
			case 't':
				out = append(out, '\t')
			case 'r':
				out = append(out, '\r')
			case '"', '\'', '\\':
				out = append(out, e)
			default:
				if l.pos >= len(l.s) {
					break
				}
				v, err := strconv.ParseUint(l.s[l.pos-1:l.pos+1], 16, 8)
				if err != nil {
					return nil, fmt.Errorf("line %d: unknown escape \\%c", l.line, e)
				}
				l.pos++
				out = append(out, byte(v))
			}
		default:
			if c == '\n' {
				l.line++
			}
			out = append(out, c)
		}
	}
	return nil, fmt.Errorf("line %d: a string is not closed", l.line)
}
