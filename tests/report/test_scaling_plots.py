"""What more devices bring: measured lines start at the smallest variant, predicted ones have bands."""

from paceline.bench.statistics import compare_variants
from paceline.report.run_data import Forecast
from paceline.report.scaling_plots import forecast_plots, forecast_table, results_table, scaling_plots
from tests.bench.sample_bench import make_bench

SPEEDS = {0: [100, 98, 102, 101, 99], 1: [180, 176, 184, 182, 178], 2: [300, 290, 310, 305, 295]}
FORECAST = Forecast(label="weak", efficiency={1: (1, 1, 1), 2: (0.9, 0.8, 0.95), 64: (0.5, 0.4, 0.6)})


def group(speeds=SPEEDS, devices=(1, 2, 4)):
    found = compare_variants(make_bench(speeds, devices=list(devices)), "strong")
    assert found is not None
    return found


def test_measured_lines_stand_beside_the_ideal():
    speed, efficiency = scaling_plots(group())
    assert [(line.label, line.note) for line in speed.lines] == [("ideal", ""), ("ddp", "3.00×")]
    assert [(line.label, line.note) for line in efficiency.lines] == [("ideal", ""), ("ddp", "75%")]
    assert [tick.text for tick in speed.x_ticks] == ["1", "2", "4"]
    assert speed.lines[1].path.count("L") == 2, "one device is part of the line"
    assert speed.lines[1].whiskers
    assert speed.alt == "Speed-up over devices, at 4 devices: ddp 3.00×."


def test_a_prediction_is_drawn_with_its_interval():
    forecast = Forecast(label="predicted", efficiency={1: (1, 1, 1), 2: (0.9, 0.8, 0.95)})
    for plot in scaling_plots(group(), forecast):
        assert plot.lines[-1].label == "predicted"
        assert plot.lines[-1].band


def test_one_number_of_devices_is_no_scaling():
    assert scaling_plots(group({0: SPEEDS[0], 1: SPEEDS[1]}, devices=(1, 1))) == []


def test_many_devices_are_spaced_by_doublings():
    speed, efficiency = forecast_plots([FORECAST])
    assert [round(tick.place) for tick in speed.x_ticks] == [0, 17, 100], "1, 2 and 64 devices"
    assert (speed.y_ticks[0].text, efficiency.y_ticks[-1].text) == ("1×", "100%")


def test_predictions_are_listed_as_numbers():
    rows = forecast_table([FORECAST]).rows
    assert rows[1] == ["2", "weak", "1.8", "1.6", "1.9", "0.9", "0.8", "0.95", ""]
    assert len(rows) == 3


def test_what_was_measured_is_a_dot_among_predictions():
    measured = Forecast(label="weak", efficiency=FORECAST.efficiency, measured={2: 0.85})
    speed, efficiency = forecast_plots([measured, FORECAST])
    for plot in (speed, efficiency):
        assert [line.label for line in plot.lines] == ["ideal", "weak", "weak", "measured"]
        assert plot.lines[-1].dots.count("M") == 1
    assert forecast_table([measured]).rows[1][-1] == "0.85"
    assert all(line.label != "measured" for plot in forecast_plots([FORECAST]) for line in plot.lines)


def test_results_are_listed_by_variant():
    table = results_table(group())
    assert (table.name, table.head[0]) == ("strong", "variant")
    assert [row[0] for row in table.rows] == ["single", "ddp 2", "ddp 4"]
