// SPDX-License-Identifier: Apache-2.0
// In the place of CUDA's header where kernels and their launches are compiled for the host.
#pragma once
#include "gpu/host_cuda.h"
