package loader

// Bounded is what an entry of an origin may ask of fetching.
var Bounded = bounded
