// SPDX-License-Identifier: Apache-2.0

package journey

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// RenderOptions say how a journey is printed.
type RenderOptions struct {
	Width int  // of the terminal in columns; 0 = 120. Long lines are cut, unless Long.
	Long  bool // don't cut
	Color bool // with ANSI colors
	JSON  bool // as JSON instead
}

// Render prints a journey as a tree, with the time since the apply and the
// duration of each step at the right.
func Render(w io.Writer, j *Journey, o RenderOptions) error {
	if o.JSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(j); err != nil {
			return fmt.Errorf("print the journey: %w", err)
		}
		return nil
	}
	p := printer{w: bufio.NewWriter(w), o: o, width: cmp.Or(o.Width, 120)}
	p.journey(j)
	if err := p.w.Flush(); err != nil {
		return fmt.Errorf("print the journey: %w", err)
	}
	return nil
}

type printer struct {
	w     *bufio.Writer
	o     RenderOptions
	width int
}

const (
	bold   = "\x1b[1m"
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	plain  = "\x1b[0m"
	// timesWidth is the room of "  +12.345s  12.3ms".
	timesWidth = 22
)

func (p *printer) color(code, text string) string {
	if !p.o.Color || text == "" {
		return text
	}
	return code + text + plain
}

func (p *printer) journey(j *Journey) {
	if j.Root != nil {
		head := printable(strings.ToLower(j.Kind) + "/" + j.Name)
		var facts []string
		if j.Namespace != "" {
			facts = append(facts, "namespace "+printable(j.Namespace))
		}
		if j.Generation > 0 {
			facts = append(facts, fmt.Sprintf("generation %d", j.Generation))
		}
		facts = append(facts, "from "+j.Start.Local().Format("15:04:05.000"))
		p.print(p.color(bold, head) + "  " + p.color(dim, strings.Join(facts, ", ")) + "\n")
		if j.Outcome != "" {
			code := bold
			if strings.HasPrefix(j.Outcome, "refused") {
				code = red
			}
			p.print(p.color(code, printable(j.Outcome)) + "\n")
		}
		p.traveller(j.Root, "")
	}
	for _, u := range j.Unknown {
		p.print(p.color(yellow, "? "+printable(u)) + "\n")
	}
}

func (p *printer) traveller(t *Traveller, indent string) {
	rows := len(t.Steps) + len(t.Owned)
	if t.Hidden > 0 {
		rows++
	}
	turn := func() (here, below string) {
		rows--
		if rows == 0 {
			return indent + "└─ ", indent + "   "
		}
		return indent + "├─ ", indent + "│  "
	}
	for _, s := range t.Steps {
		here, below := turn()
		p.step(s, here, below)
	}
	if t.Hidden > 0 {
		here, _ := turn()
		updates := "1 status update"
		if t.Hidden > 1 {
			updates = fmt.Sprintf("%d status updates", t.Hidden)
		}
		p.print(here + p.color(dim, updates+" (--all shows more)") + "\n")
	}
	for _, o := range t.Owned {
		here, below := turn()
		p.print(here + p.color(bold, printable(strings.ToLower(o.Kind)+"/"+o.Name)) + "\n")
		p.traveller(o, below)
	}
}

func (p *printer) step(s *Step, here, below string) {
	text := s.Summary
	if s.Error != "" && !strings.Contains(text, s.Error) {
		text = with(text, ": ", s.Error)
	}
	p.line(here, s.Name, text, s)
	for i, c := range s.Steps {
		if i == len(s.Steps)-1 {
			p.step(c, below+"└─ ", below+"   ")
		} else {
			p.step(c, below+"├─ ", below+"│  ")
		}
	}
}

// line prints the tree and the step's words at the left, and its times at the right.
func (p *printer) line(tree, name, text string, s *Step) {
	// What plugins and users wrote must not reach the terminal as control sequences.
	name, text = printable(name), printable(text)
	left := tree + name
	if text != "" {
		left += "  " + text
	}
	room := max(p.width-timesWidth, 30)
	n := utf8.RuneCountInString(left)
	if n > room && !p.o.Long {
		left = string([]rune(left)[:room-1]) + "…"
		n = room
	}
	at := "+" + duration(s.when())
	if s.when() < 0 { // clocks of two machines
		at = "-" + duration(-s.when())
	}
	times := fmt.Sprintf("%10s %10s", at, duration(s.Duration))
	gap := strings.Repeat(" ", max(room-n, 0)+1)
	if s.Error != "" {
		left = tree + p.color(red, strings.TrimPrefix(left, tree))
	} else if rest, ok := strings.CutPrefix(left, tree+name); ok {
		left = tree + name + p.color(dim, rest)
	}
	p.print(left + gap + p.color(dim, times) + "\n")
}

func (p *printer) print(text string) { _, _ = p.w.WriteString(text) } //nolint:errcheck // Flush tells

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case r < 0x20 || r >= 0x7f && r < 0xa0:
			return '\uFFFD'
		}
		return r
	}, text)
}

// duration prints milliseconds with three digits that matter.
func duration(ms float64) string {
	switch {
	case ms < 1:
		return fmt.Sprintf("%.0fµs", ms*1000)
	case ms < 10:
		return fmt.Sprintf("%.2fms", ms)
	case ms < 100:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0fms", ms)
	case ms < 60_000:
		return fmt.Sprintf("%.2fs", ms/1000)
	}
	return fmt.Sprintf("%.1fmin", ms/60_000)
}
