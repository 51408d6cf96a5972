// A simulated accelerator for PyTorch, "toy": two devices in this process's memory, for tests of what is asynchronous.
//
// Like a GPU, and unlike the CPU:
//   - The CPU cannot read a device's memory: the addresses that PyTorch has are in pages without any access (a window).
//     The device's threads reach the bytes at other addresses (its store).
//   - Each stream is a thread with a queue. A copy between a device and pinned memory is asynchronous, if the caller
//     allows it. Any other copy waits for all work of its stream first.
//   - Freed memory is overwritten and used again, once the stream on which it was allocated has come so far.
//   - A device has a generator with a state of 16 bytes.
// Every operator that is not below computes on the CPU: PyTorch copies the arguments there and the results back, on the
// current stream.
//
// Tests decide how far a copy comes (`toy_allow`) and whether its device fails meanwhile (`toy_fail`), and know when
// nothing moves any more (`toy_settle`). How long copies and computations take is counted, not waited for: `toy_rate`
// and `toy_compute` say it, and `toy_now` is the time at which a thread would be. No test has to sleep.

#include <sys/mman.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType);  // <ATen/autocast_mode.h> has all of PyTorch
}

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr size_t kStreams = 64;                  // of a device; they stay in their place while others are made
constexpr size_t kStoreBytes = size_t{1} << 32;  // addresses of a device; untouched pages need no memory
constexpr size_t kBlockBytes = 512;              // sizes of blocks are multiples of this
constexpr size_t kChunkBytes = size_t{1} << 16;  // a copy passes the gate in chunks
constexpr int64_t kUnlimited = -1;
constexpr auto kPatience = std::chrono::seconds(20);  // a gate opens by itself, so that no broken test hangs
constexpr unsigned char kFreed = 0xA5;

enum Direction { kDownload, kUpload, kInside, kDirections };  // from a device, to a device, within one device

// --- The state of the simulation. All of it is guarded by one mutex, and each change of it is announced to all.

struct Stream;

struct Device {
  char* window = nullptr;
  char* store = nullptr;
  size_t capacity = size_t{1} << 30;
  size_t used = 0;
  bool failed = false;
  std::map<size_t, size_t> blocks;  // offset and size of each block in use
  std::vector<std::unique_ptr<Stream>> streams;
  std::array<int64_t, kDirections> gates{kUnlimited, kUnlimited, kUnlimited};  // bytes that may still pass
  std::array<std::array<int64_t, 2>, kDirections> copies{};  // [direction][asynchronous]
};

// An asynchronous copy that is not done yet: its addresses on the host and on the device.
struct Copy {
  const char *host, *device;
  size_t bytes;
  const Stream* stream;
};

struct Pinned {
  size_t bytes;
  bool owned;  // allocated by the device's allocator, in contrast to memory that was registered
};

struct Simulation {
  std::mutex mutex;
  std::condition_variable changed;
  std::array<Device, kDevices> devices;
  std::map<const char*, Pinned> pinned;
  std::vector<Copy*> under_way;
  double bytes_per_s = 0;  // 0: copies take no time
  int register_code = 0;   // returned by each attempt to register memory, unless it is 0
  bool has_streams = true;  // otherwise, there is only the first stream of each device
  int64_t faults = 0;      // memory that was freed or unpinned while it was copied, or unpinned without being pinned
  int64_t overdue = 0;     // gates that opened by themselves

  Simulation();
};

Simulation& sim() {
  static auto* simulation = new Simulation;  // never destroyed: threads use it until the process has ended
  return *simulation;
}

using Lock = std::unique_lock<std::mutex>;
using Job = std::function<void()>;
using Condition = std::function<bool()>;

// A queue of jobs, and the thread that does them in their order.
struct Stream {
  const c10::DeviceIndex device;
  const c10::StreamId id;
  std::deque<Job> jobs;  // the first one is being done
  bool started = false;
  Condition awaited;  // by the job that is being done
  double idle_from_s = 0;  // when it has done all that is in its queue

  // Wait, in the stream's thread, until `condition` is true. Return false if that takes too long.
  bool await(Lock& lock, const Condition& condition) {
    awaited = condition;
    sim().changed.notify_all();
    const bool came = sim().changed.wait_for(lock, kPatience, condition);
    awaited = nullptr;
    return came;
  }

  // True if the stream does nothing until something else happens.
  bool is_still() const { return jobs.empty() || (awaited && !awaited()); }

  void enqueue(Job job) {
    jobs.push_back(std::move(job));
    if (!started) {
      started = true;
      std::thread([this] { work(); }).detach();
    }
    sim().changed.notify_all();
  }

  [[noreturn]] void work() {
    for (;;) {
      Job* job;
      {
        Lock lock(sim().mutex);
        sim().changed.wait(lock, [this] { return !jobs.empty(); });
        job = &jobs.front();  // a deque does not move it
      }
      (*job)();
      Job done;  // what the job holds is destroyed without the lock
      Lock lock(sim().mutex);
      done = std::move(jobs.front());
      jobs.pop_front();
      sim().changed.notify_all();
    }
  }
};

Simulation::Simulation() {
  for (c10::DeviceIndex index = 0; index < kDevices; ++index) {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    Device& device = devices[index];
    device.window = static_cast<char*>(mmap(nullptr, kStoreBytes, PROT_NONE, flags, -1, 0));
    device.store = static_cast<char*>(mmap(nullptr, kStoreBytes, PROT_READ | PROT_WRITE, flags, -1, 0));
    TORCH_CHECK(device.window != MAP_FAILED && device.store != MAP_FAILED, "toy: no address space");
    device.streams.reserve(kStreams);
    device.streams.push_back(std::unique_ptr<Stream>(new Stream{index, 0}));
  }
}

Device& device_of(c10::DeviceIndex index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "toy has ", int{kDevices}, " devices, and none is number ", int{index});
  return sim().devices[index];
}

bool overlap(const char* one, size_t one_bytes, const char* other, size_t other_bytes) {
  return one < other + other_bytes && other < one + one_bytes;
}

void check(const Device& device) { TORCH_CHECK(!device.failed, "toy:", &device - sim().devices.data(), " has failed"); }

// --- Current device, streams and time of each thread.

thread_local double now_s = 0;
thread_local bool computes = false;  // the copies of an operator that computes on the CPU take no time

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

c10::Device concrete(c10::Device device) {
  return c10::Device(kType, device.has_index() ? device.index() : current_device);
}

Stream& stream_at(c10::DeviceIndex index, c10::StreamId id) {
  return *device_of(index).streams.at(static_cast<size_t>(id));
}

Stream& current_stream(c10::DeviceIndex index) {
  return stream_at(index, current_streams.at(static_cast<size_t>(index)));
}

Stream& stream_of(const c10::Stream& stream) { return stream_at(stream.device_index(), stream.id()); }

void take(Stream& stream, double seconds) { stream.idle_from_s = std::max(stream.idle_from_s, now_s) + seconds; }

// Wait until the stream has done what is in its queue now, or its device has failed.
void synchronize(Stream& stream) {
  Lock lock(sim().mutex);
  now_s = std::max(now_s, stream.idle_from_s);
  auto passed = std::make_shared<bool>(false);
  if (!stream.jobs.empty()) {
    stream.enqueue([passed] {
      Lock inner(sim().mutex);
      *passed = true;
    });
    sim().changed.wait(lock, [&] { return *passed; });
  }
  check(device_of(stream.device));
}

// --- Memory of a device.

char* stored(Device& device, const void* address) {
  return device.store + (static_cast<const char*>(address) - device.window);
}

struct Block {
  c10::DeviceIndex device;
  size_t offset, bytes;
  Stream* stream;  // the one that was current when the block was allocated
};

// Return the offset of a gap of this size; kStoreBytes if there is none.
size_t gap(const Device& device, size_t bytes) {
  size_t begin = 0;
  for (const auto& [offset, size] : device.blocks) {
    if (offset - begin >= bytes) { break; }
    begin = offset + size;
  }
  return begin + bytes <= device.capacity ? begin : kStoreBytes;
}

void release(const Block& block) {
  Device& device = device_of(block.device);
  std::memset(device.store + block.offset, kFreed, block.bytes);
  Lock lock(sim().mutex);
  for (const Copy* copy : sim().under_way) {
    sim().faults += copy->stream != block.stream &&
        overlap(copy->device, copy->bytes, device.window + block.offset, block.bytes);
  }
  device.blocks.erase(block.offset);
  device.used -= block.bytes;
}

void free_block(void* context) {
  auto block = std::shared_ptr<Block>(static_cast<Block*>(context));
  Lock lock(sim().mutex);
  block->stream->enqueue([block] { release(*block); });
}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t wanted) override {
    const c10::Device where(kType, current_device);
    if (wanted == 0) { return {nullptr, where}; }
    Device& device = device_of(current_device);
    const size_t bytes = (wanted + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    Lock lock(sim().mutex);
    check(device);
    size_t offset = gap(device, bytes);
    if (offset == kStoreBytes) {  // perhaps streams have not come to what was freed
      const size_t count = device.streams.size();
      lock.unlock();
      for (size_t id = 0; id < count; ++id) { synchronize(*device.streams[id]); }
      lock.lock();
      offset = gap(device, bytes);
    }
    TORCH_CHECK_WITH(
        OutOfMemoryError, offset != kStoreBytes, "toy:", int{current_device}, " is out of memory: ", bytes,
        " bytes are wanted, and ", device.used, " of ", device.capacity, " are in use");
    device.blocks[offset] = bytes;
    device.used += bytes;
    auto* block = new Block{current_device, offset, bytes, &current_stream(current_device)};
    return {device.window + offset, block, &free_block, where};
  }

  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "toy: the CPU cannot copy the device's memory");
  }
};

DeviceMemory device_memory;

// --- Pinned memory.

// Return the pinned range that holds all these bytes, if there is one.
const Pinned* pinned_at(const char* begin, size_t bytes) {
  auto after = sim().pinned.upper_bound(begin);
  if (after == sim().pinned.begin()) { return nullptr; }
  const auto& [start, range] = *std::prev(after);
  return begin + bytes <= start + range.bytes ? &range : nullptr;
}

void unpin(const char* begin) {
  const size_t bytes = sim().pinned.at(begin).bytes;
  for (const Copy* copy : sim().under_way) { sim().faults += overlap(copy->host, copy->bytes, begin, bytes); }
  sim().pinned.erase(begin);
}

struct PinnedMemory final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* memory = nullptr;
    TORCH_CHECK(posix_memalign(&memory, 4096, bytes ? bytes : 1) == 0, "toy: the host is out of memory");
    Lock lock(sim().mutex);
    sim().pinned[static_cast<const char*>(memory)] = {bytes, true};
    return {memory, memory, [](void* freed) {
              Lock lock(sim().mutex);
              unpin(static_cast<const char*>(freed));
              lock.unlock();
              std::free(freed);
            }, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool record_event(void*, void*, c10::Stream) override {
    return true;  // a copy keeps such memory until it is done
  }

  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

PinnedMemory pinned_memory;

// --- Copies.

// Wait until some of these bytes may pass the gate, and return how many. Return 0 if the device has failed.
size_t passing(Lock& lock, Stream& stream, Device& device, Direction direction, size_t bytes) {
  int64_t& gate = device.gates[direction];
  if (!stream.await(lock, [&] { return device.failed || gate != 0; })) {
    ++sim().overdue;
    gate = kUnlimited;
  }
  if (device.failed) { return 0; }
  if (gate != kUnlimited) {
    bytes = std::min(bytes, static_cast<size_t>(gate));
    gate -= static_cast<int64_t>(bytes);
  }
  return bytes;
}

// Copy, in the thread of a stream. A device that fails leaves the rest as it was.
void move(Stream& stream, Direction direction, bool gated, char* to, const char* from, size_t bytes) {
  Device& device = device_of(stream.device);
  while (bytes) {
    size_t step = std::min(bytes, kChunkBytes);
    {
      Lock lock(sim().mutex);
      step = gated ? passing(lock, stream, device, direction, step) : device.failed ? 0 : step;
    }
    if (!step) { return; }
    std::memcpy(to, from, step);
    to += step, from += step, bytes -= step;
  }
}

// Copy bytes between a device and the host, on the device's current stream. `host` is the tensor with the host's bytes.
void copy_bytes(c10::DeviceIndex index, Direction direction, const void* there, const at::Tensor& host, size_t bytes,
                bool asynchronous) {
  Device& device = device_of(index);
  Stream& stream = current_stream(index);
  char* here = static_cast<char*>(host.data_ptr());
  char* store = stored(device, there);
  {
    Lock lock(sim().mutex);
    check(device);
    const Pinned* range = pinned_at(here, bytes);
    asynchronous &= range != nullptr;
    ++device.copies[direction][asynchronous];
    take(stream, sim().bytes_per_s && !computes ? static_cast<double>(bytes) / sim().bytes_per_s : 0);
    auto* to = direction == kDownload ? here : store;
    auto* from = direction == kDownload ? store : here;
    if (asynchronous) {
      auto copy = std::make_shared<Copy>(Copy{here, static_cast<const char*>(there), bytes, &stream});
      sim().under_way.push_back(copy.get());
      auto kept = range->owned ? host : at::Tensor();
      stream.enqueue([&stream, direction, to, from, bytes, copy, kept] {
        move(stream, direction, true, to, from, bytes);
        Lock inner(sim().mutex);
        std::erase(sim().under_way, copy.get());
      });
      return;
    }
    stream.enqueue([&stream, direction, to, from, bytes] { move(stream, direction, false, to, from, bytes); });
  }
  synchronize(stream);
}

void copy_inside(c10::DeviceIndex index, void* to, const void* from, size_t bytes) {
  Device& device = device_of(index);
  Lock lock(sim().mutex);
  check(device);
  ++device.copies[kInside][true];
  Stream& stream = current_stream(index);
  stream.enqueue([&stream, to = stored(device, to), from = stored(device, from), bytes] {
    move(stream, kInside, true, to, from, bytes);
  });
}

size_t span(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
}

at::Tensor host_like(const at::Tensor& tensor) {
  at::Tensor host = at::native::empty_strided_cpu(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  return host;
}

void download(const at::Tensor& from, const at::Tensor& to, bool asynchronous = false) {
  copy_bytes(from.device().index(), kDownload, from.data_ptr(), to, span(from), asynchronous);
}

void upload(const at::Tensor& from, const at::Tensor& to, bool asynchronous = false) {
  copy_bytes(to.device().index(), kUpload, to.data_ptr(), from, span(to), asynchronous);
}

bool on_toy(const at::Tensor& tensor) { return tensor.device().type() == kType; }

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const at::Tensor from = self.sizes() == to.sizes() ? self : self.expand(to.sizes());
  if (!to.numel()) { return to; }
  const bool same = from.scalar_type() == to.scalar_type() && from.strides() == to.strides() &&
      from.is_non_overlapping_and_dense() && from.is_conj() == to.is_conj() && from.is_neg() == to.is_neg();
  if (same && on_toy(from) && from.device() == to.device()) {
    copy_inside(to.device().index(), to.data_ptr(), from.data_ptr(), span(to));
  } else if (same && !on_toy(to)) {
    download(from, to, non_blocking);
  } else if (same && !on_toy(from)) {
    upload(from, to, non_blocking);
  } else {  // the CPU converts
    at::Tensor host = from;
    if (on_toy(from)) { download(from, host = host_like(from)); }
    if (!on_toy(to)) {
      to.copy_(host);
    } else {
      const at::Tensor whole = host_like(to);
      if (!to.is_non_overlapping_and_dense()) {
        download(to, whole);  // what lies between its elements remains
      }
      whole.copy_(host);
      upload(whole, to);
    }
  }
  return to;
}

// --- Streams, events and devices, as PyTorch calls them.

// What an event marks: a point in the queue of a stream.
struct Mark {
  const Device& device;
  double at_s;
  bool passed = false;
};

using Event = std::shared_ptr<Mark>;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override {
    device_of(concrete(device).index());
    current_device = concrete(device).index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.has_index() ? device.index() : current_device;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override {
    const c10::Device where = concrete(device);
    return c10::Stream(c10::Stream::UNSAFE, where, current_streams.at(static_cast<size_t>(where.index())));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, concrete(device));
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::Device where = concrete(device);
    Lock lock(sim().mutex);
    TORCH_CHECK(sim().has_streams, "toy: it makes no streams");
    auto& streams = device_of(where.index()).streams;
    TORCH_CHECK(streams.size() < streams.capacity(), "toy: too many streams");
    const auto id = static_cast<c10::StreamId>(streams.size());
    streams.push_back(std::unique_ptr<Stream>(new Stream{where.index(), id}));
    return c10::Stream(c10::Stream::UNSAFE, where, id);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override {
    Lock lock(sim().mutex);
    return stream_of(stream).jobs.empty();
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream_of(stream)); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    Device& device = device_of(concrete({kType, index}).index());
    for (size_t id = 0; id < device.streams.size(); ++id) { synchronize(*device.streams[id]); }
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) { *event = new Event; }
    Lock lock(sim().mutex);
    take(stream_of(stream), 0);
    auto mark = Event(new Mark{device_of(stream.device_index()), stream_of(stream).idle_from_s});
    *static_cast<Event*>(*event) = mark;
    stream_of(stream).enqueue([mark] {
      Lock inner(sim().mutex);
      mark->passed = true;
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) { return; }
    Lock lock(sim().mutex);
    Stream& waiting = stream_of(stream);
    waiting.idle_from_s = std::max(waiting.idle_from_s, (*static_cast<Event*>(event))->at_s);
    waiting.enqueue([&waiting, mark = *static_cast<Event*>(event)] {
      Lock inner(sim().mutex);
      while (!waiting.await(inner, [&] { return mark->passed; })) {
      }
    });
  }
  bool queryEvent(void* event) const override {
    Lock lock(sim().mutex);
    return event == nullptr || (*static_cast<Event*>(event))->passed;
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) { return; }
    Lock lock(sim().mutex);
    const Event mark = *static_cast<Event*>(event);
    sim().changed.wait(lock, [&] { return mark->passed; });
    now_s = std::max(now_s, mark->at_s);
    check(mark->device);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// --- Generators.

uint64_t mixed(uint64_t value) {  // splitmix64, https://prng.di.unimi.it/splitmix64.c
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Gives each operator a seed of its own, from its own seed and the number of operators that drew before.
struct Generator final : c10::GeneratorImpl {
  std::array<uint64_t, 2> state{c10::default_rng_seed_val, 0};  // the seed, and the operators so far

  explicit Generator(c10::DeviceIndex index)
      : GeneratorImpl({kType, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  uint64_t draw() { return mixed(state[0] ^ mixed(state[1]++)); }
  void set_current_seed(uint64_t seed) override { state = {seed, 0}; }
  void set_offset(uint64_t offset) override { state[1] = offset; }
  uint64_t get_offset() const override { return state[1]; }
  uint64_t current_seed() const override { return state[0]; }
  uint64_t seed() override {
    set_current_seed(std::random_device()());
    return state[0];
  }
  void set_state(const c10::TensorImpl& saved) override {
    TORCH_CHECK(saved.device_type() == c10::DeviceType::CPU && saved.numel() == sizeof(state), "toy: no such state");
    std::memcpy(state.data(), saved.data(), sizeof(state));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const at::TensorBase saved = at::detail::empty_cpu({sizeof(state)}, at::kByte);
    std::memcpy(saved.data_ptr(), state.data(), sizeof(state));
    return saved.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device().index());
    copy->state = state;
    return copy;
  }
};

const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* generators = new std::array{at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return generators->at(static_cast<size_t>(index < 0 ? current_device : index));
}

// For as long as it exists, the CPU's default generator draws what a seed of a device's generator gives.
class Seeded {
 public:
  explicit Seeded(at::Generator generator) : cpu_(at::detail::getDefaultCPUGenerator()), before_(cpu_.get_state()) {
    cpu_.set_current_seed(generator.get<Generator>()->draw());
  }
  ~Seeded() { cpu_.set_state(before_); }
  Seeded(const Seeded&) = delete;

 private:
  at::Generator cpu_;
  at::Tensor before_;
};

// Take the device's generator out of an operator's arguments, so that the CPU uses its own.
at::Generator take_generator(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  at::Generator found;
  c10::DeviceIndex index = -1;
  for (auto at = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()); at != stack.end(); ++at) {
    if (at->isGenerator()) {
      found = at->toGenerator();
      *at = c10::IValue();
    } else if (at->isTensor() && on_toy(at->toTensor()) && index < 0) {
      index = at->toTensor().device().index();
    }
  }
  return found.defined() ? found : default_generator(index);
}

// --- Operators.

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::unique_ptr<Seeded> seeded;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) { seeded = std::make_unique<Seeded>(take_generator(op, *stack)); }
  const bool before = std::exchange(computes, true);
  at::native::cpu_fallback(op, stack);
  computes = before;
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(concrete(device.value_or(c10::Device(kType))));
  return at::detail::empty_generic(
      size, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(concrete(device.value_or(c10::Device(kType))));
  return at::detail::empty_strided_generic(
      size, stride, &device_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}

void grow(c10::StorageImpl& storage, size_t bytes) {
  const size_t before = storage.nbytes();
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr larger = device_memory.allocate(bytes);
  if (before) { copy_inside(storage.device().index(), larger.get(), storage.data(), std::min(before, bytes)); }
  storage.set_data_ptr_noswap(std::move(larger));
  storage.set_nbytes(bytes);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_sizes_contiguous(size);
  if (format.has_value()) { tensor->empty_tensor_restride(*format); }
  const size_t bytes = at::detail::computeStorageNbytes(
      self.sizes(), self.strides(), self.element_size(), static_cast<size_t>(self.storage_offset()));
  auto& storage = *tensor->unsafe_storage().unsafeGetStorageImpl();
  if (self.numel() && storage.nbytes() < bytes) { grow(storage, bytes); }
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  if (self.sizes() != to.sizes()) { resize(to, self.sizes(), std::nullopt); }
  return copy_from(self, to, false);
}

// A device of this kind needs convolutions of its own: PyTorch has no operator for them to fall back to.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, int64_t groups) {
  const auto bias_on_cpu = bias.has_value() && bias->defined() ? std::optional(bias->cpu()) : std::nullopt;
  return at::convolution(input.cpu(), weight.cpu(), bias_on_cpu, stride, padding, dilation, transposed, output_padding,
                         groups).to(input.device());
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three convolution_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight,
                               at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                               bool transposed, at::IntArrayRef output_padding, int64_t groups,
                               std::array<bool, 3> wanted) {
  const std::array<int64_t, 1> channels{gradient.size(1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      gradient.cpu(), input.cpu(), weight.cpu(), at::IntArrayRef(channels), stride, padding, dilation, transposed,
      output_padding, groups, wanted);
  const auto back = [&](const at::Tensor& tensor) { return tensor.defined() ? tensor.to(input.device()) : tensor; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

// PyTorch's operator does not declare that it writes to the running statistics, so a fallback would not copy them back.
Three batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                     const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mean,
                     const std::optional<at::Tensor>& variance, bool training, double momentum, double epsilon) {
  if (!mean.has_value() || !mean->defined()) {
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, epsilon);
  }
  at::Tensor running_mean = *mean, running_variance = *variance;
  return at::_native_batch_norm_legit(input, weight, bias, running_mean, running_variance, training, momentum, epsilon);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("native_batch_norm", TORCH_FN(batch_norm));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
}

// To resolve a lazily conjugated tensor, PyTorch copies it: without these lines, it would resolve it first.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

// Within `torch.autocast`, some operators compute in the type that it names.
void in_lower_precision(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::AutocastPrivateUse1);
  for (auto at = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()); at != stack->end(); ++at) {
    if (at->isTensor() && on_toy(at->toTensor()) && at->toTensor().scalar_type() == at::kFloat) {
      *at = at->toTensor().to(at::autocast::get_autocast_dtype(kType));
    }
  }
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* name : {"linear", "matmul", "mm", "bmm", "addmm", "conv2d", "scaled_dot_product_attention"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_lower_precision>());
  }
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { Guard().setDevice({kType, index}); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return Guard().exchangeDevice({kType, index}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  bool isPinnedPtr(const void* address) const override {
    Lock lock(sim().mutex);
    return pinned_at(static_cast<const char*>(address), 1) != nullptr;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    grow(*storage.unsafeGetStorageImpl(), bytes);
  }
};

const bool registered = [] {
  c10::SetAllocator(kType, &device_memory);
  at::setHostAllocator(kType, &pinned_memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

template <typename Work>
auto locked(const Work& work) {
  const Lock lock(sim().mutex);
  sim().changed.notify_all();
  return work();
}

Generator& generator_of(int device) {
  return *default_generator(static_cast<c10::DeviceIndex>(device)).get<Generator>();
}

}  // namespace

// --- For tests/device/toy.py, by ctypes.

extern "C" {

// From now on, let this many bytes of asynchronous copies pass; -1: all.
void toy_allow(int device, int direction, int64_t bytes) {
  locked([&] { sim().devices[device].gates[direction] = bytes; });
}

// Wait until this many asynchronous copies were queued, and nothing moves any more. Return 0 if that takes too long.
int toy_settle(int device, int direction, int64_t copies) {
  Lock lock(sim().mutex);
  return sim().changed.wait_for(lock, kPatience / 2, [&] {
    bool still = sim().devices[device].copies[direction][true] >= copies;
    for (const Device& each : sim().devices) {
      for (const auto& stream : each.streams) { still &= stream->is_still(); }
    }
    return still;
  });
}

void toy_rate(double bytes_per_s) { locked([&] { sim().bytes_per_s = bytes_per_s; }); }
void toy_compute(int device, double seconds) { locked([&] { take(current_stream(device), seconds); }); }
double toy_now() { return now_s; }
void toy_come_to(double seconds) { now_s = std::max(now_s, seconds); }

int64_t toy_copies(int device, int direction, int asynchronous) {
  return locked([&] { return sim().devices[device].copies[direction][asynchronous]; });
}

void toy_fail(int device) { locked([&] { sim().devices[device].failed = true; }); }
void toy_take_streams() { locked([] { sim().has_streams = false; }); }
void toy_set_capacity(int device, int64_t bytes) { locked([&] { sim().devices[device].capacity = bytes; }); }
int64_t toy_used(int device) { return locked([&] { return sim().devices[device].used; }); }
int64_t toy_faults() { return locked([] { return std::exchange(sim().faults, 0); }); }
int64_t toy_overdue() { return locked([] { return sim().overdue; }); }
void toy_refuse_to_register(int code) { locked([&] { sim().register_code = code; }); }

int toy_host_register(const char* begin, int64_t bytes) {
  return locked([&] {
    for (const auto& [other, range] : sim().pinned) {
      if (overlap(begin, bytes, other, range.bytes)) { return 1; }
    }
    if (!sim().register_code) {
      sim().pinned[begin] = {static_cast<size_t>(bytes), false};
    }
    return sim().register_code;
  });
}

int toy_host_unregister(const char* begin) {
  return locked([&] {
    const auto found = sim().pinned.find(begin);
    if (found == sim().pinned.end() || found->second.owned) {
      ++sim().faults;
      return 1;
    }
    unpin(begin);
    return 0;
  });
}

void toy_seed(int device, uint64_t seed) { generator_of(device).set_current_seed(seed); }
void toy_get_state(int device, void* state) { std::memcpy(state, generator_of(device).state.data(), 16); }
void toy_set_state(int device, const void* state) { std::memcpy(generator_of(device).state.data(), state, 16); }

}  // extern "C"
