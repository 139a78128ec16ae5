// Which instruction set the kernels use.
#pragma once

namespace tensorfold {

enum class Level : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// The best level of this machine, or a lower one that TENSORFOLD_CPU_LEVEL names.
Level CurrentLevel();

// Whether AVX-512 comes with products of int8.
bool HasVnni();

// Fixes the level for tests; false if this machine lacks it.
bool SetLevel(Level level);

}  // namespace tensorfold
