#include "dispatch.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

namespace tensorfold {
namespace {

Level BestLevel() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    return __builtin_cpu_supports("avx512f") ? Level::kAvx512 : Level::kAvx2;
  }
#endif
  return Level::kPortable;
}

Level StartLevel() {
  const char* asked = std::getenv("TENSORFOLD_CPU_LEVEL");
  const Level best = BestLevel();
  if (asked && std::strcmp(asked, "portable") == 0) return Level::kPortable;
  if (asked && std::strcmp(asked, "avx2") == 0) return std::min(best, Level::kAvx2);
  return best;
}

std::atomic<Level>& Chosen() {
  static std::atomic<Level> level{StartLevel()};
  return level;
}

}  // namespace

Level CurrentLevel() { return Chosen().load(std::memory_order_relaxed); }

bool HasVnni() {
#if defined(__x86_64__)
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

bool SetLevel(Level level) {
  if (level > BestLevel()) return false;
  Chosen().store(level, std::memory_order_relaxed);
  return true;
}

}  // namespace tensorfold
