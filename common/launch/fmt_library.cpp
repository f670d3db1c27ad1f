// fmt as a library. LibTorch's wheel brings the headers of a newer fmt than the system has, without its library; taken header-only, every
// file would compile it again, at 2 s each.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
template std::locale locale_ref::get<std::locale>() const;
namespace detail {
template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template char decimal_point_impl<char>(locale_ref);
namespace dragonbox {
template decimal_fp<float> to_decimal(float) noexcept;
template decimal_fp<double> to_decimal(double) noexcept;
}  // namespace dragonbox
}  // namespace detail
FMT_END_NAMESPACE
