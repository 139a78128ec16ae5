#include "linear_attention.h"

#include <algorithm>
#include <vector>

#include "dispatch.h"
#include "pool.h"

namespace tensorfold {
namespace {

// Rows that one thread places at a time.
constexpr size_t kRowsAtOnce = 8;

// Pieces of work for each thread, so that one that comes late is not waited for.
constexpr size_t kTasksPerThread = 4;

// The rows of one lane, in order of position.
struct Run {
  size_t first_row, rows;
};

std::vector<Run> Runs(const LinearAttention& a) {
  std::vector<Run> runs;
  for (size_t row = 0, end; row < a.rows; row = end) {
    end = row + 1;
    while (end < a.rows && a.lane[end] == a.lane[row]) ++end;
    if (a.lane[row] >= 0) runs.push_back({row, end - row});
  }
  return runs;
}

// The run's rows from its row `done` on that are in one chunk.
Segment MakeSegment(const LinearAttention& a, const Run& run, size_t done, size_t key_head) {
  Segment s;
  s.first_row = run.first_row + done;
  const size_t position = a.position[s.first_row], dim = a.key_dim;
  s.place = position % kChunk;
  s.rows = std::min(run.rows - done, kChunk - s.place);
  s.key_head = key_head;
  s.lane = a.lane[s.first_row];
  s.at = position / kChunk % 2;
  s.first = position < kChunk;
  // Only the first segment of a run can begin within a chunk: what is before it was kept.
  const float* kept = a.kept.k + s.kept_at(a.key_heads, key_head) * kChunk * dim;
  for (size_t i = 0; i < s.place; ++i) s.k[i] = kept + i * dim;
  for (size_t i = 0; i < s.rows; ++i) {
    s.k[s.place + i] = a.k + ((s.first_row + i) * a.key_heads + key_head) * dim;
  }
  return s;
}

// The segment's sums of log-decays, to where they are kept.
void SumDecays(const LinearAttention& a, const Segment& s, size_t head) {
  float* G = a.kept.G + (s.kept_at(a.heads, head) * kChunk + s.place) * a.decays;
  for (size_t i = 0; i < s.rows; ++i, G += a.decays) {
    const float* g = a.g + ((s.first_row + i) * a.heads + head) * a.decays;
    for (size_t d = 0; d < a.decays; ++d) {
      G[d] = s.place + i ? G[d - a.decays] + g[d] : g[d];
    }
  }
}

// Heads [begin, end) that share a key head, through all chunks of a run.
struct Task {
  Run run;
  size_t key_head, begin, end;
};

void RunTask(const LinearAttention& a, const LinearKernels& kernels, const Task& task) {
  const size_t scores = kChunk * a.asked() * kChunk;
  const size_t coefficients = kRowTile * a.asked() * (a.key_dim + kChunk);
  thread_local std::vector<float> memory;
  const size_t size = scores + coefficients + kChunk * a.key_dim;
  if (memory.size() < size) memory.resize(size);
  const LinearScratch scratch{memory.data(), memory.data() + scores,
                              memory.data() + scores + coefficients};
  for (size_t done = 0; done < task.run.rows;) {
    const Segment s = MakeSegment(a, task.run, done, task.key_head);
    if (a.decays == 1) kernels.scores(a, s, scratch);
    for (size_t head = task.begin; head < task.end; ++head) {
      SumDecays(a, s, head);
      for (size_t row = 0; row < s.rows; row += kRowTile) {
        kernels.rows(a, s, scratch, head, row, std::min(kRowTile, s.rows - row));
      }
      if (s.place + s.rows == kChunk) kernels.follow(a, s, scratch, head);
    }
    done += s.rows;
  }
}

std::vector<Task> Tasks(const LinearAttention& a, const std::vector<Run>& runs) {
  const size_t whole = std::max<size_t>(1, runs.size() * a.key_heads);
  const size_t wanted = (kTasksPerThread * Threads() + whole - 1) / whole;
  const size_t parts = std::min(a.group(), wanted);
  std::vector<Task> tasks;
  for (const Run& run : runs) {
    for (size_t key_head = 0; key_head < a.key_heads; ++key_head) {
      const size_t first = key_head * a.group();
      for (size_t part = 0; part < parts; ++part) {
        tasks.push_back({run, key_head, first + a.group() * part / parts,
                         first + a.group() * (part + 1) / parts});
      }
    }
  }
  return tasks;
}

// Puts the keys of a row where they are kept, unless a later chunk of its run has the place; of
// padding clears the output. Last of all: until then tasks read the keys that were there.
void FinishRow(const LinearAttention& a, size_t row) {
  if (a.lane[row] < 0) {
    std::fill_n(a.out + row * a.heads * a.value_dim, a.heads * a.value_dim, 0.0f);
    return;
  }
  const size_t position = a.position[row], place = position % kChunk;
  const size_t later = row + 2 * kChunk - place;
  if (later < a.rows && a.lane[later] == a.lane[row]) return;
  for (size_t h = 0; h < a.key_heads; ++h) {
    const size_t head = (a.lane[row] * 2 + position / kChunk % 2) * a.key_heads + h;
    std::copy_n(a.k + (row * a.key_heads + h) * a.key_dim, a.key_dim,
                a.kept.k + (head * kChunk + place) * a.key_dim);
  }
}

const LinearKernels& Kernels([[maybe_unused]] const LinearAttention& a) {
#if defined(__x86_64__)
  const Level level = CurrentLevel();
  const bool wide = a.key_dim % 16 == 0 && a.value_dim % 16 == 0;
  if (level == Level::kAvx512 && wide) return kLinearAvx512;
  if (level != Level::kPortable) return kLinearAvx2;
#endif
  return kLinearPortable;
}

}  // namespace

void Attend(const LinearAttention& a) {
  const LinearKernels& kernels = Kernels(a);
  const std::vector<Task> tasks = Tasks(a, Runs(a));
  ParallelFor(tasks.size(), [&](size_t i) { RunTask(a, kernels, tasks[i]); });
  ParallelFor((a.rows + kRowsAtOnce - 1) / kRowsAtOnce, [&](size_t block) {
    const size_t end = std::min(a.rows, (block + 1) * kRowsAtOnce);
    for (size_t row = block * kRowsAtOnce; row < end; ++row) FinishRow(a, row);
  });
}

}  // namespace tensorfold
