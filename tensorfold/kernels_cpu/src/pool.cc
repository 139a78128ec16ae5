#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tensorfold {
namespace {

// How long a thread looks for work before it sleeps. The kernels of one step follow each other
// within this time; a thread that slept in between would wake too late to help.
constexpr auto kSpin = std::chrono::microseconds(60);

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

unsigned Cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  unsigned cores = std::thread::hardware_concurrency();
  return cores ? cores : 1;
}

// Spins until ready() or the time is up; whether it is ready.
template <class Ready>
bool Spin(Ready&& ready) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

// A run is open to any thread that comes by while there is work left. The caller takes work itself
// and then waits for those that came only: a thread that the system has not woken yet, or has put
// aside for another process, is not missed.
//
// Every thread has a share of its own, work that lies side by side, and helps with the others' when
// that is done. Taking turns instead would have each core's prefetcher run into the memory that
// another is about to read, which halved the rate on two cores.
class Pool {
 public:
  Pool() : shares_(Cores()) {
    for (size_t i = 1; i < shares_.size(); ++i) threads_.emplace_back([this, i] { Work(i); });
  }

  size_t threads() const { return threads_.size() + 1; }

  void Run(size_t count, void (*body)(void*, size_t), void* context) {
    if (threads_.empty() || count <= 1) {
      for (size_t i = 0; i < count; ++i) body(context, i);
      return;
    }
    std::lock_guard<std::mutex> one_at_a_time(run_);
    body_ = body;
    context_ = context;
    const size_t all = shares_.size();
    for (size_t i = 0; i < all; ++i) {
      shares_[i].next.store(count * i / all, std::memory_order_relaxed);
      shares_[i].end = count * (i + 1) / all;
    }
    inside_.store(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_seq_cst);
    if (sleeping_.load(std::memory_order_seq_cst) > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    Take(0);
    inside_.fetch_sub(kOpen, std::memory_order_acq_rel);
    while (!Spin([this] { return inside_.load(std::memory_order_acquire) == 0; })) {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr uint32_t kOpen = 1u << 31;

  // Each on a cache line of its own.
  struct alignas(64) Share {
    std::atomic<size_t> next{0};
    size_t end = 0;
  };

  void Take(size_t own) {
    for (size_t turn = 0; turn < shares_.size(); ++turn) {
      Share& share = shares_[(own + turn) % shares_.size()];
      for (size_t i; (i = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;) {
        body_(context_, i);
      }
    }
  }

  bool Enter() {
    uint32_t inside = inside_.load(std::memory_order_relaxed);
    while (inside & kOpen) {
      if (inside_.compare_exchange_weak(inside, inside + 1, std::memory_order_acq_rel)) return true;
    }
    return false;
  }

  void Work(size_t own) {
    uint64_t seen = 0;
    for (;;) {
      auto ready = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
      if (!Spin(ready)) {
        std::unique_lock<std::mutex> lock(sleep_);
        sleeping_.fetch_add(1, std::memory_order_seq_cst);
        wake_.wait(lock, [&] { return epoch_.load(std::memory_order_seq_cst) != seen; });
        sleeping_.fetch_sub(1, std::memory_order_relaxed);
      }
      seen = epoch_.load(std::memory_order_acquire);
      if (Enter()) {
        Take(own);
        inside_.fetch_sub(1, std::memory_order_release);
      }
    }
  }

  std::vector<Share> shares_;
  std::vector<std::thread> threads_;
  std::mutex run_, sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleeping_{0};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<uint32_t> inside_{0};  // threads at work, and kOpen while more may come
  void (*body_)(void*, size_t) = nullptr;
  void* context_ = nullptr;
};

}  // namespace

// Never destroyed: its threads may outlive main.
static Pool& ThePool() {
  static Pool* pool = new Pool;
  return *pool;
}

void ParallelFor(size_t count, void (*body)(void*, size_t), void* context) {
  ThePool().Run(count, body, context);
}

size_t Threads() { return ThePool().threads(); }

}  // namespace tensorfold
