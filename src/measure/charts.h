// Charts of the HTML report, as inline SVG made from numbers.
//
// Owns horizontal bars in groups (with an optional interval and reference mark) and scatter plots with intervals and
// labels that keep out of each other's way. Colours are CSS variables that html.cc defines for light and dark. Every
// chart carries a title and a description for screen readers. Text is escaped here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure/result.h"

namespace carpool {

inline constexpr int kSeriesColors = 10;  // --s0 ... --s9

// Safe inside HTML text and attributes: & < > " ' become entities, control characters other than newline and tab '?'.
std::string escape_html(std::string_view text);

struct Bar {
  std::string group;  // bars of one group stand together under its name
  std::string label;
  double value = 0;
  std::string value_text;
  std::optional<Estimate> interval;  // of `value`, drawn as a whisker
  std::optional<double> reference;   // drawn as a tick across the bar
  int color = 0;
};

struct BarChart {
  std::string id, title, description, axis;
  std::string reference_name;  // explains the tick; empty without one
  double axis_max = 0;         // 0: from the values
  std::vector<Bar> bars;
};

struct Point {
  std::string label;
  double x = 0;
  Estimate y;
  int color = 0;
};

struct ScatterChart {
  std::string id, title, description, x_axis, y_axis;
  std::vector<Point> points;
};

// Points and their front: what no other point beats in both directions, joined by a line; x and y the less, the better.
// The y axis is logarithmic, a power of ten a step; 0 and what is below a ten-thousandth of the largest stand on its
// lower end. Only points of the front are labelled; the others say their names as titles.
struct FrontChart {
  std::string id, title, description, x_axis, y_axis;
  std::vector<Point> points;
  std::vector<size_t> front;  // indices of points, x ascending
};

// <svg> elements; values that are not finite are drawn as 0 length or left out.
std::string svg(const BarChart& chart);
std::string svg(const ScatterChart& chart);
std::string svg(const FrontChart& chart);

// "var(--s3)", for legends.
std::string series_color(int series);

// Round numbers from at most `low` to at least `high`, about `count` steps apart. Post: at least two, ascending.
std::vector<double> axis_ticks(double low, double high, int count);

}  // namespace carpool
