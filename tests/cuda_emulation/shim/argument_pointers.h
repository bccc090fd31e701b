// Where the arguments of a kernel hold addresses: pointers among the parameters, and pointers
// inside structs and arrays of structs. Found from the types of members, so that neither numbers
// nor what was left over in padding can be taken for an address. C++ cannot list members; it can
// initialise a struct from values that turn into whatever a member is, and note what each became.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <type_traits>
#include <utility>
#include <vector>

namespace brigade::cuda_emulation {

template <typename T>
void add_pointers(size_t at, std::vector<size_t>* places);

// The members met so far of a struct that begins at `begin`.
struct MembersSoFar {
  size_t begin = 0;
  size_t end = 0;
  std::vector<size_t>* places;  // of pointers

  template <typename Member>
  void add() {
    end = (end + alignof(Member) - 1) / alignof(Member) * alignof(Member);
    add_pointers<Member>(end, places);
    end += sizeof(Member);
  }
};

// Turns into any member of `Whole`; an array takes one for each element.
template <typename Whole>
struct AnyMember {
  MembersSoFar* so_far;
  template <typename Member>
  requires(!std::is_same_v<Member, Whole>) operator Member() const {
    so_far->add<Member>();
    return Member{};
  }
};

template <typename T, size_t... kIndex>
constexpr bool takes_members(std::index_sequence<kIndex...>) {
  return requires { T{AnyMember<T>{(static_cast<void>(kIndex), nullptr)}...}; };
}

template <typename T, size_t kCount = 1>
constexpr size_t count_members() {
  if constexpr (takes_members<T>(std::make_index_sequence<kCount + 1>())) {
    return count_members<T, kCount + 1>();
  } else {
    return kCount;
  }
}

template <typename T, size_t... kIndex>
void visit_members(MembersSoFar* so_far, std::index_sequence<kIndex...>) {
  [[maybe_unused]] const T made{AnyMember<T>{(static_cast<void>(kIndex), so_far)}...};
}

// Adds the offsets of all pointers in a T that begins at `at`.
template <typename T>
void add_pointers(size_t at, std::vector<size_t>* places) {
  if constexpr (std::is_pointer_v<T>) {
    places->push_back(at);
  } else if constexpr (std::is_aggregate_v<T> && !std::is_empty_v<T>) {
    MembersSoFar members{.begin = at, .end = at, .places = places};
    visit_members<T>(&members, std::make_index_sequence<count_members<T>()>());
    if ((members.end - at + alignof(T) - 1) / alignof(T) * alignof(T) != sizeof(T)) {
      std::fprintf(stderr, "cuda emulation: an argument's layout is not understood: %s\n",
                   __PRETTY_FUNCTION__);
      std::abort();
    }
  } else {
    static_assert(!std::is_union_v<T> && (std::is_scalar_v<T> || sizeof(T) < sizeof(void*)),
                  "a kernel's argument is a plain struct, a number or a pointer");
  }
}

}  // namespace brigade::cuda_emulation
