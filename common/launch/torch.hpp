// The part of LibTorch that nearly every file uses: tensors, autograd, the base of modules. <torch/torch.h> is twice as much, and costs
// every file that includes it seconds. Files that build layers or optimisers include <torch/nn.h> or <torch/optim.h> beside this.
#pragma once

#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>
