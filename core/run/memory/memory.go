// SPDX-License-Identifier: Apache-2.0

// Package memory keeps the memory of a long-lived process small: the garbage
// collector runs the earlier the more is live, and what only the start needed goes
// back to the machine; a control group's limit is kept to. Nothing it does changes what the process computes; where the
// operator has set GOGC, that stays.
package memory
