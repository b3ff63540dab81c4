// The parts of Boost.Asio and Boost.Beast that are no templates, compiled once for all folders that use sockets
// (BOOST_ASIO_SEPARATE_COMPILATION and BOOST_BEAST_SEPARATE_COMPILATION are set for everything that links base).
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
