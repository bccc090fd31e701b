#include "expert_parallel/transport/link_address.h"

#include <xxhash.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "expert_parallel/transport/transport.h"

namespace brigade::expert_parallel {
namespace {

constexpr char kMagic[4] = {'B', 'R', 'L', '1'};
constexpr size_t kSumBytes = sizeof(uint64_t);

template <typename T>
void put(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void put_text(std::string& to, const std::string& text) {
  put(to, static_cast<uint16_t>(text.size()));
  to += text;
}

// Takes fields off the front; every read past the end fails and stays failed.
class Reader {
 public:
  explicit Reader(const std::string& bytes, size_t end) : bytes_(bytes), end_(end) {}
  template <typename T>
  T take() {
    T value{};
    if (ok_ && end_ - at_ >= sizeof(T)) {
      std::memcpy(&value, bytes_.data() + at_, sizeof(T));
      at_ += sizeof(T);
    } else {
      ok_ = false;
    }
    return value;
  }
  std::string take_text() {
    const size_t size = take<uint16_t>();
    if (!ok_ || end_ - at_ < size) {
      ok_ = false;
      return {};
    }
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  bool ended_well() const { return ok_ && at_ == end_; }

 private:
  const std::string& bytes_;
  const size_t end_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace

std::string encode_link_address(const LinkAddress& address) {
  std::string bytes(kMagic, sizeof(kMagic));
  put(bytes, address.link);
  put(bytes, address.nonce);
  put(bytes, address.window);
  put(bytes, address.max_message_bytes);
  put_text(bytes, address.host.boot_id);
  for (const uint64_t inode : address.host.namespaces) put(bytes, inode);
  put_text(bytes, address.worker);
  put_text(bytes, address.worker_net);
  put<uint64_t>(bytes, XXH3_64bits(bytes.data(), bytes.size()));
  return bytes;
}

absl::StatusOr<LinkAddress> decode_link_address(const std::string& bytes) {
  const auto refuse = [&](const char* why) {
    return absl::InvalidArgumentError(
        absl::StrCat("data plane address of ", bytes.size(), " bytes ", why));
  };
  if (bytes.size() > kMaxAddressBytes) return refuse("is too long");
  if (bytes.size() < sizeof(kMagic) + kSumBytes ||
      std::memcmp(bytes.data(), kMagic, sizeof(kMagic)) != 0) {
    return refuse("is not one of ours");
  }
  const size_t end = bytes.size() - kSumBytes;
  uint64_t sum;
  std::memcpy(&sum, bytes.data() + end, sizeof(sum));
  if (sum != XXH3_64bits(bytes.data(), end)) return refuse("was changed on its way");
  Reader reader(bytes, end);
  reader.take<std::array<char, sizeof(kMagic)>>();
  LinkAddress address;
  address.link = reader.take<uint32_t>();
  address.nonce = reader.take<uint16_t>();
  address.window = reader.take<uint16_t>();
  address.max_message_bytes = reader.take<uint32_t>();
  address.host.boot_id = reader.take_text();
  for (uint64_t& inode : address.host.namespaces) inode = reader.take<uint64_t>();
  address.worker = reader.take_text();
  address.worker_net = reader.take_text();
  if (!reader.ended_well() || address.worker.empty() || address.window == 0)
    return refuse("is incomplete");
  return address;
}

}  // namespace brigade::expert_parallel
