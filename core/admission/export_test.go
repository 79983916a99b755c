package admission

// PatchText is patchText, for the tests outside.
var PatchText = patchText
