// SPDX-License-Identifier: Apache-2.0
// Selects experts from logits on the device, one warp per row.
#pragma once
#include "check.h"
#include "device/cuda/device_router.h"

namespace moebius::cuda {

// Writes the ids and weights [rows, slots] of chosen experts; zero_weights: [rows] weights of
// identity experts, or null; counts: [experts], to which the number of rows of each expert is
// added, or null.
void route_rows(const DeviceRouter& router, const CudaRows& logits, int32_t* ids, float* weights,
                float* zero_weights, uint32_t* counts, cudaStream_t stream);

}  // namespace moebius::cuda
