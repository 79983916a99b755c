// SPDX-License-Identifier: Apache-2.0

package compiler

// Shapes are for the measurements of hosts beside such modules.
var Shapes = shapes
