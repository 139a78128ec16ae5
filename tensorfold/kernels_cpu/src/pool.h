// Threads that share the work of one kernel at a time.
#pragma once

#include <cstddef>

namespace tensorfold {

// Calls body(context, i) once for every i in [0, count), on all cores, and returns when all are
// done. Which thread takes which i differs from call to call, so results must not depend on it.
//
// XLA's own pool is not used: a task handed to it from one of its threads waits in that thread's
// queue until another happens to look there, and on few cores that was often too late.
void ParallelFor(size_t count, void (*body)(void* context, size_t i), void* context);

// How many threads take part.
size_t Threads();

// The same for a callable.
template <class Body>
void ParallelFor(size_t count, Body&& body) {
  ParallelFor(count, [](void* context, size_t i) { (*static_cast<Body*>(context))(i); }, &body);
}

}  // namespace tensorfold
