// A stand-in accelerator: memory of the host behind torch's PrivateUse1, with CUDA's manners.
//
// An operator runs the CPU's kernel on a view of the same memory. A CPU tensor of one or more dimensions beside a
// tensor of the device is refused, and so is a generator of the CPU. Whatever would make a CUDA device and the host
// wait for one another is counted: copies both ways, values read, and results whose size only the data tells.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/stack.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/values_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <unordered_set>

namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType);  // its header brings the whole of ATen with it
}

namespace {

using at::Tensor;
using OptTensor = std::optional<Tensor>;
constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
const c10::Device HERE(DEVICE, 0);
const c10::Device HOST(c10::kCPU);
const c10::DispatchKeySet DENSE(c10::DispatchKey::PrivateUse1);

// ---- the counts --------------------------------------------------------------------------------------------------

enum Kind { TO_HOST, TO_DEVICE, SCALAR };
using Listener = void (*)(int, const char*, int64_t);  // the kind, the operator, the bytes
std::atomic<Listener> listener{nullptr};

void note(Kind kind, const std::string& op, int64_t bytes) {
  if (Listener to = listener) to(kind, op.c_str(), bytes);
}

// ---- the device: memory, one stream, generators --------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return DEVICE; }
  c10::Device exchangeDevice(c10::Device) const override { return HERE; }
  c10::Device getDevice() const override { return HERE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::Stream getNewStream(c10::Device, int) const override { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void* block_of(size_t bytes) { return bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : nullptr; }

struct Memory final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* p = block_of(bytes);
    return {p, p, &free, HERE};
  }
  at::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(DEVICE, &memory);

// Pinned memory is the host's; its blocks are remembered, so that is_pinned() knows them.
std::mutex pinned_lock;
std::map<const char*, size_t> pinned;

void unpin(void* p) {
  std::lock_guard<std::mutex> held(pinned_lock);
  pinned.erase(static_cast<const char*>(p));
  free(p);
}

struct PinnedMemory final : at::Allocator {
  at::DataPtr allocate(size_t bytes) override {
    void* p = block_of(bytes);
    std::lock_guard<std::mutex> held(pinned_lock);
    if (p) pinned[static_cast<const char*>(p)] = bytes;
    return {p, p, &unpin, HOST};
  }
  at::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override { memcpy(to, from, bytes); }
};
PinnedMemory pinned_memory;

// A generator of the device: numbers come from one of the CPU inside, which the CPU's kernels are handed.
struct Generator final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Generator(at::Generator of) : c10::GeneratorImpl(HERE, DENSE), inner(std::move(of)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(inner.clone()); }
};

const at::Generator& default_generator() {
  static at::Generator one = at::make_generator<Generator>(at::detail::createCPUGenerator());
  return one;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_generator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    static std::atomic<bool> asked{false};
    if (!asked.exchange(true)) return default_generator();  // the first to ask is torch.standin, which keeps it
    return at::make_generator<Generator>(at::detail::createCPUGenerator());
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> held(pinned_lock);
    auto after = pinned.upper_bound(static_cast<const char*>(data));
    return after != pinned.begin() && data < (--after)->first + after->second;
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto grown = memory.allocate(bytes);
    if (auto kept = std::min(bytes, storage.nbytes())) memcpy(grown.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};
Hooks hooks;

// ---- one memory, two devices ---------------------------------------------------------------------------------------

void let_go(void* held) { delete static_cast<c10::Storage*>(held); }

// A tensor of the other device over the same memory; the first storage lives as long as the second.
Tensor over(const Tensor& t, c10::Device device, c10::DispatchKeySet keys, c10::Allocator* grows) {
  auto held = new c10::Storage(t.storage());
  c10::DataPtr data(const_cast<void*>(held->data()), held, &let_go, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), held->nbytes(), std::move(data), grows, true);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), keys, t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) made._set_conj(true);
  if (t.is_neg()) made._set_neg(true);
  return made;
}

bool away(const Tensor& t) { return t.defined() && t.device().type() == DEVICE; }

Tensor as_host(const Tensor& t) {
  if (!away(t)) return t;
  if (!t.is_sparse()) return over(t, HOST, c10::DispatchKeySet(c10::DispatchKey::CPU), c10::GetCPUAllocator());
  auto impl = at::sparse::get_sparse_impl(t);
  auto options = t.options().device(HOST);
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      impl->sparse_dim(), impl->dense_dim(), t.sizes(), as_host(impl->indices()), as_host(impl->values()), options,
      impl->coalesced());
}

Tensor as_device(const Tensor& t) {
  if (!t.defined() || away(t)) return t;
  if (!t.is_sparse()) return over(t, HERE, DENSE, &memory);
  auto impl = at::sparse::get_sparse_impl(t);
  return at::native::new_with_dims_and_tensor_sparse_symint(
      impl->sparse_dim(), impl->dense_dim(), t.sym_sizes(), as_device(impl->indices()), as_device(impl->values()),
      t.scalar_type(), c10::kSparse, HERE, {}, impl->coalesced());
}

// An index outside of its tensor is found by a kernel of CUDA while it runs: no later call of the process works then.
std::atomic<bool> broken{false};

void check_not_broken() { TORCH_CHECK(!broken, "device-side assert triggered: an earlier index was out of range"); }

// ---- every operator that has no kernel of its own --------------------------------------------------------------------

// A CUDA kernel's result has a size that only the data tells, or is a number of Python's.
const std::unordered_set<std::string> WAITS = {
    "aten::nonzero", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::histc", "aten::equal",
    "aten::multinomial", "aten::_coalesce", "aten::embedding_renorm_"};
const std::unordered_set<std::string> INDEXES = {"aten::index", "aten::index_put", "aten::index_put_",
                                                 "aten::_index_put_impl_", "aten::_unsafe_index"};

const std::unordered_set<std::string> LOOKS_UP = {
    "aten::index_select", "aten::gather", "aten::scatter", "aten::scatter_add", "aten::scatter_reduce", "aten::index_add",
    "aten::index_copy", "aten::index_fill_", "aten::take", "aten::put_", "aten::embedding_dense_backward",
    "aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::nll_loss_forward"};

// CUDA adds floats up in any order: of two equal calls the last digits differ.
void shuffle(const c10::FunctionSchema& schema, torch::jit::Stack* stack, size_t first) {
  static at::Generator drawn = at::detail::createCPUGenerator(0);
  auto at_name = [&](const char* name) -> c10::IValue& { return (*stack)[first + *schema.argumentIndexWithName(name)]; };
  auto &index = at_name("index"), &source = at_name(schema.name() == "aten::index_add" ? "source" : "src");
  if (index.toTensor().dim() != 1 || !at::isFloatingType(source.toTensor().scalar_type())) return;
  auto order = at::randperm(index.toTensor().numel(), drawn, at::kLong);
  index = index.toTensor().index_select(0, order);
  if (source.toTensor().dim()) source = source.toTensor().index_select(at_name("dim").toInt(), order);
}

// CUDA divides by a number of the host by way of its reciprocal, which rounds twice.
void divide(torch::jit::Stack* stack, size_t first) {
  auto self = (*stack)[first].toTensor(), by = (*stack)[first + 1].toTensor(), out = (*stack)[first + 2].toTensor();
  const bool wide = out.scalar_type() == at::kDouble;
  const double inverse = wide ? 1.0 / by.item<double>() : 1.0f / by.item<float>();
  at::mul_out(out, self, at::scalar_tensor(inverse, wide ? at::kDouble : at::kFloat));
  stack->resize(first);
  stack->emplace_back(out);
}

// CUDA's threads add up every third number, say: other roundings than the host's, the same in every call.
bool add_by_threads(const c10::FunctionSchema& schema, torch::jit::Stack* stack, size_t first) {
  auto self = (*stack)[first].toTensor(), out = (*stack)[first + 4].toTensor();
  auto dims = (*stack)[first + 1].isNone() ? std::vector<int64_t>{} : (*stack)[first + 1].toIntVector();
  if (dims.empty() && self.dim() == 1) dims = {0};
  const bool wide = self.scalar_type() == at::kFloat || self.scalar_type() == at::kDouble;
  if (dims.size() != 1 || !self.dim() || !wide) return false;
  if (out.scalar_type() != self.scalar_type() || self.size(dims[0]) < 3) return false;
  const bool keep = (*stack)[first + 2].toBool();
  auto part = [&](int64_t i) { return self.slice(dims[0], i, self.size(dims[0]), 3).sum(dims, keep); };
  auto total = part(0) + part(1) + part(2);
  out.resize_(total.sizes()).copy_(schema.name() == "aten::mean" ? total / self.size(dims[0]) : total);
  stack->resize(first);
  stack->emplace_back(out);
  return true;
}

bool is_mask(const Tensor& t) { return t.scalar_type() == at::kBool || t.scalar_type() == at::kByte; }

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  const auto first = stack->size() - schema.arguments().size();
  check_not_broken();
  const bool indexes = INDEXES.count(name);
  bool waits = WAITS.count(name);
  std::vector<std::pair<Tensor, Tensor>> pairs;  // a tensor of the device, and its view on the host

  bool value_of_one = false;
  const bool divides = name == "aten::div" && schema.overload_name() == "out" && away((*stack)[first].toTensor()) &&
                       !away((*stack)[first + 1].toTensor());
  const bool adds = (name == "aten::sum" && schema.overload_name() == "IntList_out") ||
                    (name == "aten::mean" && schema.overload_name() == "out");

  auto taken = [&](const Tensor& t, bool written, bool index) -> Tensor {
    if (!t.defined()) return t;
    if (index && is_mask(t) && name != "aten::index") waits = true;  // index calls nonzero by itself
    if (away(t)) {
      pairs.emplace_back(t, as_host(t));
      return pairs.back().second;
    }
    if (index) {
      if (t.dim()) note(TO_DEVICE, name, t.nbytes());  // CUDA takes an index of the host along by itself
      return t;
    }
    TORCH_CHECK(t.dim() == 0 && !written, "Expected all tensors to be on the same device, but found at least two ",
                "devices, standin:0 and cpu! (in ", name, ")");
    return t;
  };

  for (size_t i = 0; i < schema.arguments().size(); i++) {
    auto& value = (*stack)[first + i];
    const auto& argument = schema.arguments()[i];
    const bool written = argument.alias_info() && argument.alias_info()->isWrite();
    if (value.isTensor()) {
      value = taken(value.toTensor(), written, false);
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(taken(t, written, false));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<OptTensor> list;
      for (const OptTensor& t : value.toOptionalTensorList()) list.push_back(t ? OptTensor(taken(*t, false, indexes)) : t);
      value = list;
    } else if (value.isDevice()) {
      value = HOST;
    } else if (argument.type()->str().find("Generator") != std::string::npos) {
      if (!value.isNone()) {
        auto given = value.toGenerator();
        TORCH_CHECK(given.device().type() == DEVICE, "Expected a 'standin' device type for generator but found 'cpu'");
        value = static_cast<Generator*>(given.unsafeGetGeneratorImpl())->inner;
      } else {
        value = static_cast<Generator*>(default_generator().unsafeGetGeneratorImpl())->inner;
      }
    }
    if (argument.name() == "values" && value.isTensor()) value_of_one = value.toTensor().numel() == 1;
    // the size of what is repeated is the sum of the repeats, where it is not given
    if (name == "aten::repeat_interleave" && argument.name() == "output_size" && value.isNone()) waits = true;
  }
  // x[mask] = 3 fills where the mask is true: no size is asked for
  if (indexes && value_of_one && pairs.size() <= 3) waits = false;
  if (waits) note(SCALAR, name, 0);

  {
    at::AutoDispatchBelowAutograd below;
    if (name == "aten::index_add" || name == "aten::scatter_add") shuffle(schema, stack, first);
    try {
      if (divides) divide(stack, first);
      else if (!adds || !add_by_threads(schema, stack, first)) op.callBoxed(stack);
    } catch (const c10::Error& error) {
      const std::string says = error.what_without_backtrace();
      const bool outside = says.find("out of range") != says.npos || says.find("out of bounds") != says.npos;
      if (!outside || says.find("Dimension") != says.npos || !(indexes || LOOKS_UP.count(name))) throw;
      broken = true;
      TORCH_CHECK(false, "device-side assert triggered: ", says);
    }
  }

  auto given_back = [&](const Tensor& t) -> Tensor {
    if (!t.defined() || away(t)) return t;
    for (auto& [device, host] : pairs)
      if (host.is_same(t)) return device;
    if (t.is_sparse() || !t.storage().nbytes()) return as_device(t);
    for (auto& [device, host] : pairs)
      if (!host.is_sparse() && host.storage().data() == t.storage().data()) {  // a view of an argument
        auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(device.storage()), DENSE, t.dtype());
        view.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
        return view;
      }
    return as_device(t);
  };
  const auto results = stack->size() - schema.returns().size();
  for (size_t i = 0; i < schema.returns().size(); i++) {
    auto& value = (*stack)[results + i];
    if (value.isTensor()) {
      value = given_back(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<Tensor> list;
      for (const Tensor& t : value.toTensorVector()) list.push_back(given_back(t));
      value = list;
    }
  }
  // what the kernel grew, shrank or replaced
  for (auto& [device, host] : pairs) {
    if (device.is_sparse()) {
      auto to = at::sparse::get_sparse_impl(device);
      auto from = at::sparse::get_sparse_impl(host);
      to->raw_resize_(from->sparse_dim(), from->dense_dim(), from->sizes());
      to->set_indices_and_values_unsafe(as_device(from->indices()), as_device(from->values()));
      to->set_coalesced(from->coalesced());
    } else if (device.sizes() != host.sizes() || device.strides() != host.strides()) {
      if (host.storage().data() != device.storage().data())
        device.unsafeGetTensorImpl()->set_storage_keep_dtype(as_device(host).storage());
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
}

// ---- kernels of its own: memory, views, copies -------------------------------------------------------------------------

using OptType = std::optional<at::ScalarType>;
using OptLayout = std::optional<at::Layout>;
using OptDevice = std::optional<at::Device>;
using OptBool = std::optional<bool>;

Tensor empty(at::IntArrayRef size, OptType dtype, OptLayout, OptDevice, OptBool, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, DENSE, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, OptType dtype, OptLayout, OptDevice, OptBool) {
  return at::detail::empty_strided_generic(size, stride, &memory, DENSE, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (away(from) && !away(to)) note(TO_HOST, "aten::copy_", from.nbytes());
  if (!away(from) && away(to)) note(TO_DEVICE, "aten::copy_", to.nbytes());
  check_not_broken();
  auto given = as_host(from), taken = as_host(to);
  taken.copy_(given);
  const auto kind = to.scalar_type();
  if (away(from) && at::isFloatingType(from.scalar_type()) && (kind == at::kLong || kind == at::kInt)) {
    // a float above the range of integers becomes the largest one on CUDA, and the smallest on the host
    const int64_t largest = kind == at::kLong ? INT64_MAX : INT32_MAX;
    taken.masked_fill_(given.ge(static_cast<double>(largest)), largest);
  }
  return to;
}

Tensor copy_and_resize(const Tensor& from, const Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar read(const Tensor& t) {
  check_not_broken();
  note(SCALAR, "aten::_local_scalar_dense", t.nbytes());
  return at::native::_local_scalar_dense_cpu(as_host(t));
}

const Tensor& resize_(const Tensor& t, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const size_t needed = (c10::multiply_integers(sizes) + t.storage_offset()) * t.dtype().itemsize();
  if (t.storage().nbytes() < needed) hooks.resizePrivateUse1Bytes(t.storage(), needed);
  t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

Tensor& set_part(Tensor& t, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::cpu::set_(t, storage, offset, size, stride);
}

Tensor& set_whole(Tensor& t, at::Storage storage) {
  const int64_t count = storage.nbytes() / t.dtype().itemsize();
  return at::cpu::set_(t, storage, 0, count, {});
}

Tensor as_strided(const Tensor& t, at::IntArrayRef size, at::IntArrayRef stride, std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(t, size, stride, offset);
}

// ---- the cells of GRU and LSTM: torch calls the fused ones on every device but the CPU --------------------------------

Tensor plus(const Tensor& gates, const OptTensor& bias) { return bias && bias->defined() ? gates + *bias : gates; }

std::tuple<Tensor, Tensor> gru(const Tensor& from_input, const Tensor& from_hidden, const Tensor& hidden,
                               const OptTensor& input_bias, const OptTensor& hidden_bias) {
  auto x = plus(from_input, input_bias).chunk(3, 1), h = plus(from_hidden, hidden_bias).chunk(3, 1);
  auto reset = (x[0] + h[0]).sigmoid(), keep = (x[1] + h[1]).sigmoid();
  auto fresh = (x[2] + reset * h[2]).tanh();
  return {fresh + keep * (hidden - fresh), at::cat({reset, keep, fresh, hidden, h[2].contiguous()}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_backward(const Tensor& grad, const Tensor& kept, bool has_bias) {
  auto parts = kept.chunk(5, 1);
  auto &reset = parts[0], &keep = parts[1], &fresh = parts[2], &hidden = parts[3], &inner = parts[4];
  auto to_fresh = grad * (1 - keep) * (1 - fresh * fresh);
  auto to_keep = grad * (hidden - fresh) * keep * (1 - keep);
  auto to_reset = to_fresh * inner * reset * (1 - reset);
  auto x = at::cat({to_reset, to_keep, to_fresh}, 1), h = at::cat({to_reset, to_keep, to_fresh * reset}, 1);
  return {x, h, grad * keep, has_bias ? x.sum(0) : Tensor(), has_bias ? h.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> lstm(const Tensor& from_input, const Tensor& from_hidden, const Tensor& cell,
                                        const OptTensor& input_bias, const OptTensor& hidden_bias) {
  auto gates = (plus(from_input, input_bias) + plus(from_hidden, hidden_bias)).chunk(4, 1);
  auto in = gates[0].sigmoid(), forget = gates[1].sigmoid(), fresh = gates[2].tanh(), out = gates[3].sigmoid();
  auto next = forget * cell + in * fresh;
  return {out * next.tanh(), next, at::cat({in, forget, fresh, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_backward(const OptTensor& grad_hidden, const OptTensor& grad_cell,
                                                 const Tensor& cell, const Tensor& next, const Tensor& kept, bool has_bias) {
  auto parts = kept.chunk(4, 1);
  auto &in = parts[0], &forget = parts[1], &fresh = parts[2], &out = parts[3];
  auto shown = next.tanh();
  auto to_hidden = grad_hidden && grad_hidden->defined() ? *grad_hidden : at::zeros_like(next);
  auto to_next = to_hidden * out * (1 - shown * shown);
  if (grad_cell && grad_cell->defined()) to_next = to_next + *grad_cell;
  auto gates = at::cat({to_next * fresh * in * (1 - in), to_next * cell * forget * (1 - forget),
                        to_next * in * (1 - fresh * fresh), to_hidden * shown * out * (1 - out)}, 1);
  return {gates, to_next * forget, has_bias ? gates.sum(0) : Tensor()};
}

Tensor convolution(const Tensor& x, const Tensor& weight, const OptTensor& bias, at::IntArrayRef stride,
                   at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef out, int64_t groups) {
  at::AutoDispatchBelowAutograd below;
  auto added = bias && bias->defined() ? OptTensor(as_host(*bias)) : OptTensor();
  return as_device(at::convolution(as_host(x), as_host(weight), added, stride, padding, dilation, transposed, out, groups));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", &convolution);  // forwards alone: fastrec trains no convolution
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_and_resize);
  m.impl("_local_scalar_dense", &read);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Storage_storage_offset", &set_part);
  m.impl("as_strided", &as_strided);
  m.impl("view", [](const Tensor& t, at::IntArrayRef size) { return at::native::view(t, size); });
  m.impl("_reshape_alias", [](const Tensor& t, at::IntArrayRef a, at::IntArrayRef b) { return at::native::_reshape_alias(t, a, b); });
  m.impl("unfold", [](const Tensor& t, int64_t d, int64_t n, int64_t step) { return at::native::unfold(t, d, n, step); });
  // torch's own way to these resizes a result, which warns
  m.impl("mse_loss", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("_thnn_fused_gru_cell", &gru);
  m.impl("_thnn_fused_gru_cell_backward", &gru_backward);
  m.impl("_thnn_fused_lstm_cell", &lstm);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_backward);
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) {
  m.impl("empty.memory_format", &at::native::empty_sparse);
  m.impl("_sparse_coo_tensor_with_dims", &at::native::new_with_dims_sparse);
  m.impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  m.impl("_indices", &at::native::_indices_sparse);
  m.impl("_values", &at::native::_values_sparse);
  m.impl("indices", &at::native::indices_sparse);
  m.impl("values", &at::native::values_sparse);
  m.impl("_nnz", &at::native::_nnz_sparse);
  m.impl("sparse_dim", &at::native::sparse_dim_sparse);
  m.impl("dense_dim", &at::native::dense_dim_sparse);
  m.impl("is_coalesced", &at::native::is_coalesced_sparse);
  m.impl("copy_", &at::native::copy_sparse_wrapper_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

// ---- autocast: what torch computes in 16 bits, and what in 32 ----------------------------------------------------------

const std::unordered_set<std::string> IN_16_BITS = {
    "linear", "matmul", "mm", "mv", "bmm", "addmm", "addmv", "addr", "addbmm", "baddbmm", "einsum", "prelu", "conv1d",
    "conv2d", "conv3d", "_convolution", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "scaled_dot_product_attention"};
const std::unordered_set<std::string> IN_32_BITS = {
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow", "softplus", "layer_norm", "native_layer_norm", "group_norm", "nuclear_norm", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "prod", "softmax", "log_softmax", "cumprod", "cumsum", "norm", "sum"};
const std::unordered_set<std::string> IN_THE_WIDEST = {
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "grid_sampler", "index_put", "tensordot", "scatter_add",
    "cat", "stack"};

void autocast(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard inside(c10::DispatchKey::AutocastPrivateUse1);
  const auto name = op.schema().name().substr(6);  // without "aten::"
  const auto first = stack->size() - op.schema().arguments().size();
  auto floats = [](const Tensor& t) {
    return away(t) && at::isFloatingType(t.scalar_type()) && t.scalar_type() != at::kDouble;
  };
  auto each = [&](const std::function<Tensor(const Tensor&)>& change) {
    for (size_t i = first; i < stack->size(); i++) {
      auto& value = (*stack)[i];
      if (value.isTensor()) {
        value = change(value.toTensor());
      } else if (value.isTensorList()) {
        c10::List<Tensor> list;
        for (const Tensor& t : value.toTensorVector()) list.push_back(change(t));
        value = list;
      }
    }
  };
  std::optional<at::ScalarType> wanted;
  if (IN_16_BITS.count(name)) wanted = at::autocast::get_autocast_dtype(DEVICE);
  if (IN_32_BITS.count(name)) wanted = at::kFloat;
  if (IN_THE_WIDEST.count(name)) {
    each([&](const Tensor& t) {
      if (floats(t) && (!wanted || t.scalar_type() == at::kFloat)) wanted = t.scalar_type();
      return t;
    });
  }
  if (wanted) each([&](const Tensor& t) { return floats(t) ? t.to(*wanted) : t; });
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&autocast>()); }

}  // namespace

extern "C" {
void standin_begin() { at::RegisterPrivateUse1HooksInterface(&hooks); }
void standin_listen(Listener to) { listener = to; }
}
