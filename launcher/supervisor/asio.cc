// Boost.Asio itself: compiled here once, for all files of the supervisor.
#include <boost/asio/impl/src.hpp>
