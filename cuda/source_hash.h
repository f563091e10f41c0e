#pragma once

namespace jaxgemm {

// SHA-256 over the files of cuda/, as cmake/source_hash.py computes it: tells whether a binary was built from a tree.
const char* source_hash();

}  // namespace jaxgemm
