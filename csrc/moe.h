// A mixture of experts as one operation: rows choose experts, are sorted by them, pass through two grouped products and
// are summed. What a row gets depends on that row alone.
#pragma once
#include "context.h"
#include "kernels/kernels.h"

namespace octavo {

// Scratch of one operation for at most `max_rows` rows.
int64_t moe_scratch_bytes(const oct_moe& op, const Kernels& kernels, int max_rows);

// Called by all threads of the team, which wait for each other inside; the caller adds the barrier after it.
void run_moe(const oct_moe& op, Matrix src, Matrix dst, int num_rows, uint8_t* scratch, oct_context& context,
             ThreadShare share);

}  // namespace octavo
