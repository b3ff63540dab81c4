// Drawing of bars and scatter plots; see charts.h. Units are SVG user units: 1 is a pixel at full width.
#include "measure/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace carpool {
namespace {

constexpr double kCharWidth = 7.2;  // of the 12-unit font, an average that labels are laid out with
constexpr double kBarChartWidth = 980;
constexpr double kRowHeight = 26;
constexpr double kBarHeight = 14;

template <class... Args>
void add(std::string& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

double finite(double v) { return std::isfinite(v) ? v : 0; }

double text_width(const std::string& text) { return kCharWidth * static_cast<double>(text.size()); }

std::string shortened(const std::string& text, size_t limit) {
  return text.size() <= limit ? text : text.substr(0, limit - 3) + "...";
}

std::string color_of(int series) { return series_color(series); }

// Opens the element with what assistive technology reads.
std::string open_svg(const std::string& id, const std::string& title, const std::string& description, double width,
                     double height) {
  return fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\" "
      "aria-labelledby=\"{2}-title {2}-desc\">\n<title id=\"{2}-title\">{3}</title>\n<desc "
      "id=\"{2}-desc\">{4}</desc>\n",
      width, height, escape_html(id), escape_html(title), escape_html(description));
}

// Tick labels with the decimals that tell neighbours apart.
std::string tick_text(double value, double step) {
  const int decimals = step >= 1 ? 0 : std::min(6, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return fmt::format("{:.{}f}", std::abs(value) < step * 1e-6 ? 0.0 : value, decimals);
}

struct Box {
  double x, y, width, height;
  bool meets(const Box& o) const {
    return x < o.x + o.width && o.x < x + width && y < o.y + o.height && o.y < y + height;
  }
};

// One bar with its label, whisker, reference tick and number.
void draw_bar(std::string& out, const Bar& bar, double y, double left, double per_unit) {
  const double end = left + finite(bar.value) * per_unit;
  double right = end;
  add(out, "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left - 8, y + 12,
      escape_html(shortened(bar.label, 34)));
  add(out, "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" fill=\"{}\">", left, y + 1,
      std::max(end - left, 0.5), kBarHeight, color_of(bar.color));
  add(out, "<title>{}</title></rect>\n", escape_html(fmt::format("{}, {}: {}", bar.group, bar.label, bar.value_text)));
  const double middle = y + 1 + kBarHeight / 2;
  if (bar.interval) {
    const double lo = left + finite(bar.interval->lo) * per_unit, hi = left + finite(bar.interval->hi) * per_unit;
    add(out,
        "<path class=\"whisker\" d=\"M{0:.1f} {2:.1f}H{1:.1f}M{0:.1f} {3:.1f}V{4:.1f}M{1:.1f} {3:.1f}V{4:.1f}\"/>\n",
        lo, hi, middle, middle - 4, middle + 4);
    right = std::max(right, hi);
  }
  if (bar.reference) {
    const double at = left + finite(*bar.reference) * per_unit;
    add(out, "<path class=\"reference\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", at, y - 2, y + kBarHeight + 4);
    right = std::max(right, at);
  }
  add(out, "<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", right + 6, y + 12,
      escape_html(bar.value_text));
}

// Where the label of a point goes: the first free place around it, among those inside the frame.
Box place_label(double x, double y, const std::string& label, const Box& frame, const std::vector<Box>& taken) {
  const double width = text_width(label), height = 14;
  Box last{};
  for (int ring = 0; ring < 8; ++ring) {
    const double away = 8 + 12 * ring;
    const Box places[] = {
        {x + 8, y - 7 - 12.0 * ring, width, height},         {x + 8, y - 7 + 12.0 * ring, width, height},
        {x - 8 - width, y - 7 - 12.0 * ring, width, height}, {x - width / 2, y - away - height, width, height},
        {x - 8 - width, y - 7 + 12.0 * ring, width, height}, {x - width / 2, y + away, width, height}};
    for (const Box& box : places) {
      const bool inside = box.x >= frame.x && box.x + box.width <= frame.x + frame.width && box.y >= frame.y &&
                          box.y + box.height <= frame.y + frame.height;
      if (!inside) continue;
      last = box;
      if (std::none_of(taken.begin(), taken.end(), [&](const Box& o) { return o.meets(box); })) return box;
    }
  }
  return last.width > 0 ? last : Box{x + 8, y - 7, width, height};
}

// The frame, grid and axes of a scatter plot, and the way from values to places.
struct Plot {
  std::vector<double> x_ticks, y_ticks;
  Box frame;
  double x(double v) const {
    return frame.x + (v - x_ticks.front()) / (x_ticks.back() - x_ticks.front()) * frame.width;
  }
  double y(double v) const {
    return frame.y + frame.height - (v - y_ticks.front()) / (y_ticks.back() - y_ticks.front()) * frame.height;
  }
};

// The power of ten that `v` is, or the axis's lower end for what has none.
double power_of_ten(double v, double lowest) { return v > 0 ? std::max(std::log10(v), lowest) : lowest; }

std::string power_text(double power) {
  return power >= -4 && power <= 4 ? fmt::format("{:g}", std::pow(10, power)) : fmt::format("1e{:.0f}", power);
}

// What the vertical axis says at a tick: the number, or with `powers` ten to it.
std::string y_tick_text(const Plot& plot, double v, bool powers) {
  return powers ? power_text(v) : tick_text(v, plot.y_ticks[1] - plot.y_ticks[0]);
}

template <class Chart>
void draw_axes(std::string& out, const Plot& plot, const Chart& chart, bool powers = false) {
  const Box& f = plot.frame;
  for (const double v : plot.x_ticks) {
    add(out, "<path class=\"grid\" d=\"M{:.1f} {:.1f}V{:.1f}\"/>\n", plot.x(v), f.y, f.y + f.height);
    add(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", plot.x(v),
        f.y + f.height + 18, tick_text(v, plot.x_ticks[1] - plot.x_ticks[0]));
  }
  for (const double v : plot.y_ticks) {
    add(out, "<path class=\"{}\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", std::abs(v) < 1e-12 ? "axis" : "grid", f.x,
        plot.y(v), f.x + f.width);
    add(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", f.x - 8, plot.y(v) + 4,
        y_tick_text(plot, v, powers));
  }
  add(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", f.x + f.width / 2,
      f.y + f.height + 38, escape_html(chart.x_axis));
  add(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", f.x - 56, f.y - 12, escape_html(chart.y_axis));
}

Plot make_plot(const std::vector<Point>& points, double width, double height) {
  double x_low = points[0].x, x_high = x_low, y_low = 0, y_high = 0;
  for (const Point& p : points) {
    x_low = std::min(x_low, p.x);
    x_high = std::max(x_high, p.x);
    y_low = std::min({y_low, p.y.value, p.y.lo});
    y_high = std::max({y_high, p.y.value, p.y.hi});
  }
  const double x_margin = std::max(0.04 * (x_high - x_low), 0.02 * std::abs(x_high) + 1e-6);
  const double y_margin = std::max(0.04 * (y_high - y_low), 1e-4);  // none where the axis ends at no cost
  return {axis_ticks(x_low - x_margin, x_high + x_margin, 6),
          axis_ticks(y_low < 0 ? y_low - y_margin : 0, y_high > 0 ? y_high + y_margin : 1e-4, 5),
          Box{70, 30, width - 90, height - 80}};
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += (static_cast<unsigned char>(c) < 32 && c != '\n' && c != '\t') || c == 127 ? '?' : c;
    }
  }
  return out;
}

std::vector<double> axis_ticks(double low, double high, int count) {
  if (!(std::isfinite(low) && std::isfinite(high))) return {0, 1};
  if (!(high > low)) high = low + std::max(std::abs(low) * 0.1, 1e-6);
  const double rough = (high - low) / count, power = std::pow(10, std::floor(std::log10(rough)));
  const double share = rough / power;
  const double step = power * (share <= 1.0001 ? 1 : share <= 2.0001 ? 2 : share <= 5.0001 ? 5 : 10);
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  for (int i = 0; ticks.size() < 2 || ticks.back() < high - step * 1e-9; ++i) ticks.push_back((first + i) * step);
  return ticks;
}

std::string svg(const BarChart& chart) {
  double top = 0, label_width = 0, value_width = 0;
  int groups = 0;
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const Bar& bar = chart.bars[i];
    top = std::max(
        {top, finite(bar.value), bar.interval ? finite(bar.interval->hi) : 0, finite(bar.reference.value_or(0))});
    label_width = std::max(label_width, text_width(shortened(bar.label, 34)));
    value_width = std::max(value_width, text_width(bar.value_text));
    groups += i == 0 || bar.group != chart.bars[i - 1].group;
  }
  const std::vector<double> ticks = axis_ticks(0, chart.axis_max > 0 ? chart.axis_max : std::max(top, 1e-9), 5);
  const double left = label_width + 16, right = kBarChartWidth - value_width - 14;
  // The axis may end beyond the longest bar: its number still has room up to the frame's end.
  const double per_unit = (right - left) / std::max(ticks.back(), top);
  const double height = 22 * groups + kRowHeight * static_cast<double>(chart.bars.size()) + 52;
  std::string out = open_svg(chart.id, chart.title, chart.description, kBarChartWidth, height);
  const double bottom = height - 46;
  for (const double v : ticks) {
    const double x = left + v * per_unit;
    add(out, "<path class=\"{}\" d=\"M{:.1f} 4V{:.1f}\"/>\n", v == 0 ? "axis" : "grid", x, bottom);
    add(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", x, bottom + 16,
        tick_text(v, ticks[1] - ticks[0]));
  }
  add(out, "<text class=\"tick\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", (left + right) / 2,
      bottom + 36, escape_html(chart.axis + (chart.reference_name.empty() ? "" : "; tick: " + chart.reference_name)));
  double y = 4;
  for (size_t i = 0; i < chart.bars.size(); ++i) {
    const Bar& bar = chart.bars[i];
    if (i == 0 || bar.group != chart.bars[i - 1].group) {
      add(out, "<text class=\"group\" x=\"0\" y=\"{:.1f}\">{}</text>\n", y + 14, escape_html(bar.group));
      y += 22;
    }
    draw_bar(out, bar, y + 3, left, per_unit);
    y += kRowHeight;
  }
  return out + "</svg>\n";
}

std::string svg(const ScatterChart& chart) {
  constexpr double kWidth = 490, kHeight = 340;
  std::string out = open_svg(chart.id, chart.title, chart.description, kWidth, kHeight);
  std::vector<Point> points;
  for (const Point& p : chart.points) {
    if (std::isfinite(p.x) && std::isfinite(p.y.value) && std::isfinite(p.y.lo) && std::isfinite(p.y.hi))
      points.push_back(p);
  }
  if (points.empty()) return out + "</svg>\n";
  const Plot plot = make_plot(points, kWidth, kHeight);
  draw_axes(out, plot, chart);
  std::vector<Box> taken = {{plot.frame.x, plot.y(0) - 1, plot.frame.width, 2}};  // the line of no cost
  for (const Point& p : points) {
    taken.push_back({plot.x(p.x) - 6, plot.y(p.y.value) - 6, 12, 12});
    taken.push_back({plot.x(p.x) - 3, plot.y(p.y.hi), 6, plot.y(p.y.lo) - plot.y(p.y.hi)});
  }
  for (const Point& p : points) {
    const double x = plot.x(p.x), y = plot.y(p.y.value), lo = plot.y(p.y.lo), hi = plot.y(p.y.hi);
    add(out, "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}M{3:.1f} {1:.1f}H{4:.1f}M{3:.1f} {2:.1f}H{4:.1f}\" stroke=\"{5}\"/>\n",
        x, lo, hi, x - 4, x + 4, color_of(p.color));
    add(out, "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"/>\n", x, y, color_of(p.color));
    const std::string label = shortened(p.label, 34);
    const Box box = place_label(
        x, y, label, {plot.frame.x, plot.frame.y - 10, plot.frame.width + 20, plot.frame.height + 10}, taken);
    taken.push_back(box);
    add(out, "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", box.x, box.y + 11, escape_html(label));
  }
  return out + "</svg>\n";
}

std::string series_color(int series) { return fmt::format("var(--s{})", series % kSeriesColors); }

std::string svg(const FrontChart& chart) {
  constexpr double kWidth = 530, kHeight = 380;
  std::string out = open_svg(chart.id, chart.title, chart.description, kWidth, kHeight);
  double least = HUGE_VAL, most = 0;
  for (const Point& p : chart.points) {
    if (p.y.value > 0) least = std::min(least, p.y.value);
    most = std::max(most, finite(p.y.value));
  }
  if (!(least < HUGE_VAL)) least = most = 1e-3;
  least = std::max(least, 1e-4 * most);
  const double lowest = std::floor(std::log10(least)) - 0.25;
  std::vector<Point> points = chart.points;  // in powers of ten
  double x_low = HUGE_VAL, x_high = -HUGE_VAL;
  for (Point& p : points) {
    p.y = {power_of_ten(p.y.value, lowest), power_of_ten(p.y.lo, lowest), power_of_ten(p.y.hi, lowest)};
    p.x = finite(p.x);
    x_low = std::min(x_low, p.x);
    x_high = std::max(x_high, p.x);
  }
  if (points.empty()) return out + "</svg>\n";
  const double margin = 0.03 * (x_high - x_low) + 1e-6;
  std::vector<double> y_ticks;
  for (double v = std::floor(lowest); y_ticks.size() < 2 || y_ticks.back() < std::log10(most); ++v)
    y_ticks.push_back(v);
  const Plot plot{axis_ticks(x_low - margin, x_high + margin, 6), y_ticks, Box{70, 30, kWidth - 90, kHeight - 80}};
  draw_axes(out, plot, chart, true);
  std::vector<Box> taken;
  std::string line;
  for (const size_t i : chart.front) {
    const Point& p = points.at(i);
    line += line.empty() ? fmt::format("M{:.1f} {:.1f}", plot.x(p.x), plot.y(p.y.value))
                         : fmt::format("H{:.1f}V{:.1f}", plot.x(p.x), plot.y(p.y.value));
  }
  add(out, "<path class=\"axis\" stroke-dasharray=\"4 3\" d=\"{}\"/>\n", line);
  for (size_t i = 0; i < points.size(); ++i) {
    const Point& p = points[i];
    const double x = plot.x(p.x), y = plot.y(p.y.value);
    taken.push_back({x - 5, y - 5, 10, 10});
    add(out, "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"{3}\"/>\n", x, plot.y(p.y.lo), plot.y(p.y.hi),
        color_of(p.color));
    add(out, "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\" fill=\"{}\"><title>{}</title></circle>\n", x, y,
        color_of(p.color), escape_html(fmt::format("{}: {:.4g}, {:.4g}", p.label, p.x, chart.points[i].y.value)));
  }
  for (const size_t i : chart.front) {
    const std::string label = shortened(points[i].label, 28);
    const Box box =
        place_label(plot.x(points[i].x), plot.y(points[i].y.value), label,
                    {plot.frame.x, plot.frame.y - 10, plot.frame.width + 20, plot.frame.height + 10}, taken);
    taken.push_back(box);
    add(out, "<text class=\"label\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", box.x, box.y + 11, escape_html(label));
  }
  return out + "</svg>\n";
}

}  // namespace carpool
