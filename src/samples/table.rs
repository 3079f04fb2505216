//! The series of one answer, compact, and found by their labels.

use super::flight::Asker;
use super::groups::{Asked, Groups};
use crate::hpa::UnixMillis;
use crate::k8s::Quantity;
use crate::prometheus::{AnswerKind, Body, Error, Held, Label, NoSample, Series, read_answer};
use crate::promql::plan::Shape;
use std::collections::HashMap;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

/// The series of an answer. What it holds beside their labels' text is 24 bytes
/// a series and 8 a label, and 16 bytes a series for each index, of which it keeps a few.
#[derive(Debug, Default)]
pub struct Table {
    /// All values of labels, and their names where a list of them begins.
    text: String,
    /// The names of the labels that series have, each list once: its first cell, and how many.
    names: Vec<(u32, u32)>,
    /// Where each value, or name, begins and ends in the text.
    cells: Vec<(u32, u32)>,
    rows: Vec<Row>,
    /// The rows whose value is no sample, and why; their value is NaN.
    odd: Vec<(u32, NoSample)>,
    scalar: bool,
    indexes: Mutex<Indexes>,
}

/// The indexes of a table, the one used last at the end.
#[derive(Debug, Default)]
struct Indexes {
    kept: Vec<Arc<Index>>,
    /// The bytes that are held for the table, until it is dropped.
    held: Option<Held>,
}

/// The indexes that a table keeps at most. Which labels they are by is for those to say who
/// ask: there may be thousands.
const INDEXES: usize = 4;
/// Those whose bytes are held from the beginning.
const COUNTED: usize = 2;

/// What it takes beside to tell a list of names from others.
const KNOWN: usize = 80;
/// By how many bytes more are held at a time.
const STEP: usize = 64 << 10;

#[derive(Clone, Copy, Debug)]
struct Row {
    value: f64,
    time: UnixMillis,
    /// Its place in `names`.
    names: u32,
    /// Its first cell.
    cells: u32,
}

/// The rows by the values of some labels.
#[derive(Debug)]
struct Index {
    labels: Vec<String>,
    hasher: RandomState,
    /// By hash, and of the same hash in the order of the answer.
    rows: Vec<(u64, u32)>,
}

impl Table {
    /// Reads an answer's body.
    ///
    /// # Errors
    /// As [`read_answer`] says.
    pub fn read(body: &[u8]) -> Result<Self, Error> {
        Self::read_within(body, |_| Ok(()))
    }

    /// Reads an answer's body, and holds the bytes that are held for it: more where
    /// its series take more, and at last what they need.
    ///
    /// # Errors
    /// As [`read_answer`] says, and [`Error::Memory`].
    pub fn holding(body: Body) -> Result<Self, Error> {
        let (body, mut held) = body.into_parts();
        let within = |bytes: usize| {
            let beyond = (bytes + body.len()).saturating_sub(held.bytes());
            // In steps: others ask for bytes, too.
            if beyond == 0 { Ok(()) } else { held.grow(beyond.max(STEP)) }
        };
        let table = Self::read_within(&body, within)?;
        drop(body);
        held.resize(table.bytes())?;
        let indexes = Indexes { kept: Vec::new(), held: Some(held) };
        Ok(Self { indexes: Mutex::new(indexes), ..table })
    }

    /// Reads an answer's body, while there is room for what it takes.
    fn read_within(
        body: &[u8],
        mut within: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        if u32::try_from(body.len()).is_err() {
            return Err(Error::Answer("it is larger than 4 GiB".to_owned()));
        }
        let (mut table, mut names, mut room) = (Self::default(), HashMap::new(), Ok(()));
        let kind = read_answer(body, |series| {
            if room.is_ok() {
                table.push(series, &mut names);
                room = within(table.taken());
            }
        })?;
        room?;
        table.scalar = kind == AnswerKind::Scalar;
        table.text.shrink_to_fit();
        table.names.shrink_to_fit();
        table.cells.shrink_to_fit();
        table.rows.shrink_to_fit();
        table.odd.shrink_to_fit();
        Ok(table)
    }

    /// What it takes in memory while it is read, with what tells lists of names apart.
    /// Room to grow is not counted: nobody has written to it.
    fn taken(&self) -> usize {
        let cells = size_of_val(&*self.cells) + size_of_val(&*self.names);
        let rows = size_of_val(&*self.rows) + size_of_val(&*self.odd);
        self.text.len() + cells + rows + self.names.len() * KNOWN
    }

    /// What it takes in memory, with the indexes that are counted.
    fn bytes(&self) -> usize {
        let indexes = COUNTED * self.bytes_of_index();
        let cells = size_of_val(&*self.cells) + size_of_val(&*self.names);
        let rows = size_of_val(&*self.rows) + size_of_val(&*self.odd);
        size_of::<Self>() + self.text.len() + cells + rows + indexes
    }

    fn bytes_of_index(&self) -> usize {
        size_of::<(u64, u32)>() * self.rows.len()
    }

    fn push(&mut self, series: Series<'_>, known: &mut HashMap<u64, Vec<u32>>) {
        let Series { labels, value, time } = series;
        let names = self.names_of(labels, known);
        let value = value.unwrap_or_else(|why| {
            self.odd.push((self.rows.len() as u32, why));
            f64::NAN
        });
        let cells = self.cells.len() as u32;
        labels.iter().for_each(|(_, value)| self.write(value));
        self.rows.push(Row { value, time, names, cells });
    }

    fn write(&mut self, text: &str) {
        let start = self.text.len() as u32;
        self.text.push_str(text);
        self.cells.push((start, self.text.len() as u32));
    }

    /// The place of the labels' names in `names`; nearly always that of the row
    /// before. `known` has the places by the names' hash.
    fn names_of(&mut self, labels: &[Label<'_>], known: &mut HashMap<u64, Vec<u32>>) -> u32 {
        let same = |table: &Self, place: u32| {
            let names = table.names(place);
            names.len() == labels.len() && names.zip(labels).all(|(a, (b, _))| a == b)
        };
        let last = self.rows.last().map(|row| row.names);
        if let Some(last) = last.filter(|last| same(self, *last)) {
            return last;
        }
        let mut hash = DefaultHasher::new();
        labels.iter().for_each(|(name, _)| name.hash(&mut hash));
        let places = known.entry(hash.finish()).or_default();
        if let Some(place) = places.iter().find(|place| same(self, **place)) {
            return *place;
        }
        let place = self.names.len() as u32;
        self.names.push((self.cells.len() as u32, labels.len() as u32));
        labels.iter().for_each(|(name, _)| self.write(name));
        places.push(place);
        place
    }

    /// The names of a list.
    fn names(&self, place: u32) -> impl ExactSizeIterator<Item = &str> {
        let (first, count) = self.names[place as usize];
        (first..first + count).map(|cell| self.cell(cell as usize))
    }

    /// How many series there are.
    pub fn series(&self) -> usize {
        self.rows.len()
    }

    /// The value of a row's label; empty where it has none, as Prometheus sees it.
    fn label(&self, row: u32, name: &str) -> &str {
        let row = &self.rows[row as usize];
        let place = self.names(row.names).position(|own| own == name);
        place.map_or("", |place| self.cell(row.cells as usize + place))
    }

    fn cell(&self, place: usize) -> &str {
        let (start, end) = self.cells[place];
        &self.text[start as usize..end as usize]
    }

    /// The index by these labels, made where it is not kept. It is kept in place of the one
    /// that was not used for longest, where there is no room for one more.
    fn index(&self, labels: &[&str]) -> Arc<Index> {
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        let Indexes { kept, held } = &mut *indexes;
        let index = match kept.iter().position(|index| index.labels == labels) {
            Some(place) => kept.remove(place),
            None => {
                let mut grown = || match held {
                    Some(held) => held.grow(self.bytes_of_index()).is_ok(),
                    None => true,
                };
                let room = kept.len() < COUNTED || kept.len() < INDEXES && grown();
                if !room {
                    kept.remove(0);
                }
                let labels = labels.iter().map(|label| (*label).to_owned()).collect();
                Arc::new(Index::new(self, labels))
            }
        };
        kept.push(index.clone());
        index
    }
}

impl Index {
    fn new(table: &Table, labels: Vec<String>) -> Self {
        let hasher = RandomState::new();
        let hash = |row: u32| {
            let mut of_row = hasher.build_hasher();
            labels.iter().for_each(|label| table.label(row, label).hash(&mut of_row));
            of_row.finish()
        };
        let mut rows: Vec<(u64, u32)> =
            (0..table.rows.len() as u32).map(|row| (hash(row), row)).collect();
        rows.sort_unstable();
        Self { labels, hasher, rows }
    }

    /// The hash of the values of the first labels, to go on with.
    fn begin(&self, values: &[&str]) -> DefaultHasher {
        let mut hash = self.hasher.build_hasher();
        values.iter().for_each(|value| value.hash(&mut hash));
        hash
    }

    /// The rows of a hash whose labels have these values, in the order of the answer.
    fn find<'a, Values: Iterator<Item = &'a str>>(
        &'a self,
        table: &'a Table,
        hash: u64,
        values: impl Fn() -> Values,
    ) -> impl Iterator<Item = u32> {
        let from = self.rows.partition_point(|(other, _)| *other < hash);
        let same = self.rows[from..].iter().take_while(move |(other, _)| *other == hash);
        let equal = move |row: &u32| {
            let mut both = self.labels.iter().zip(values());
            both.all(|(label, value)| table.label(*row, label) == value)
        };
        same.map(|(_, row)| *row).filter(equal)
    }
}

/// What one query gave: its own series of an answer that may be that of many.
#[derive(Clone)]
pub struct Samples {
    table: Arc<Table>,
    asked: Asked,
}

/// One series.
#[derive(Clone, Copy)]
pub struct Sampled<'a> {
    samples: &'a Samples,
    row: u32,
}

impl Samples {
    pub(super) fn new(table: Arc<Table>, asked: Asked) -> Self {
        Self { table, asked }
    }

    /// Those of an answer that was not asked for by a store; nobody asks again.
    pub fn alone(table: Arc<Table>, shape: Arc<Shape>) -> Self {
        Self::new(table, Groups::of_nothing().asked(shape, Asker::of("")))
    }

    /// What was asked.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    fn shape(&self) -> &Shape {
        &self.asked.shape
    }

    /// Its series, in the order of the answer.
    pub fn iter(&self) -> impl Iterator<Item = Sampled<'_>> {
        let found: Vec<_> = Finder::new(self, None).rows(None).collect();
        found.into_iter()
    }

    /// Why one of its series is no sample, where any is not.
    pub fn no_sample(&self) -> Option<NoSample> {
        let odd = &self.table.odd;
        if odd.is_empty() {
            return None;
        }
        let why = |row: u32| odd.binary_search_by_key(&row, |(row, _)| *row).ok();
        let places: Vec<_> = Finder::new(self, None).all_rows(None).filter_map(why).collect();
        let found = places.into_iter().map(|place| odd[place].1);
        // A histogram is what its owner can do something about.
        found.max_by_key(|why| *why == NoSample::Histogram)
    }

    /// Its series by a label's value.
    pub fn by<'a>(&'a self, label: &'a str) -> Finder<'a> {
        Finder::new(self, Some(label))
    }

    /// Whether the query's own series may have a label: not where it is there to
    /// tell joined queries apart alone.
    fn keeps(&self, label: &str) -> bool {
        !self.shape().form.open.iter().any(|open| !open.kept && open.name == label)
    }
}

/// Finds the series of a query by a label's value.
pub struct Finder<'a> {
    samples: &'a Samples,
    index: Arc<Index>,
    /// The one value that the query asks for of each of the index's first labels.
    values: Vec<&'a str>,
    hash: DefaultHasher,
    /// The labels of which the query asks for several values.
    several: Vec<(&'a str, &'a [String])>,
    /// Whether the index's last label is the one to find by.
    keyed: bool,
}

impl<'a> Finder<'a> {
    fn new(samples: &'a Samples, label: Option<&'a str>) -> Self {
        let (mut labels, mut values, mut several) = (Vec::new(), Vec::new(), Vec::new());
        for (open, own) in samples.shape().form.open.iter().zip(samples.shape().own.iter()) {
            match own.as_slice() {
                [value] => {
                    labels.push(open.name.as_str());
                    values.push(value.as_str());
                }
                any_of => several.push((open.name.as_str(), any_of)),
            }
        }
        // None has what is not its own: all are found by the empty value.
        let label = label.filter(|label| samples.keeps(label));
        let keyed = label.is_some();
        labels.extend(label);
        let index = samples.table.index(&labels);
        Self { hash: index.begin(&values), samples, index, values, several, keyed }
    }

    /// The series that have this value; those without the label for an empty one.
    pub fn get<'s>(&'s self, value: &'s str) -> impl Iterator<Item = Sampled<'a>> + 's {
        let some = self.keyed || value.is_empty();
        self.rows(self.keyed.then_some(value)).filter(move |_| some)
    }

    fn rows<'s>(&'s self, value: Option<&'s str>) -> impl Iterator<Item = Sampled<'a>> + 's {
        let samples = self.samples;
        let is_sample = |row: &u32| !samples.table.rows[*row as usize].value.is_nan();
        self.all_rows(value).filter(is_sample).map(move |row| Sampled { samples, row })
    }

    /// Its rows, those that are no samples, too.
    fn all_rows<'s>(&'s self, value: Option<&'s str>) -> impl Iterator<Item = u32> + 's {
        let Self { samples, index, values, hash, several, .. } = self;
        let table = &*samples.table;
        let mut hash = hash.clone();
        value.iter().for_each(|value| value.hash(&mut hash));
        let found = index.find(table, hash.finish(), move || values.iter().copied().chain(value));
        let own = move |row: &u32| {
            several.iter().all(|(name, any_of)| {
                let label = table.label(*row, name);
                any_of.binary_search_by(|value| value.as_str().cmp(label)).is_ok()
            })
        };
        found.filter(own)
    }
}

impl<'a> Sampled<'a> {
    fn of_row(self) -> &'a Row {
        &self.samples.table.rows[self.row as usize]
    }

    /// Its value.
    pub fn value(self) -> Quantity {
        Quantity::from_f64(self.of_row().value).expect("what is not finite is no sample")
    }

    /// The time of the query.
    pub fn time(self) -> UnixMillis {
        self.of_row().time
    }

    /// Its value as a time, in Unix seconds.
    pub fn as_time(self) -> UnixMillis {
        (self.of_row().value * 1000.0) as UnixMillis
    }

    /// Whether it is a scalar, which has no labels at all.
    pub fn is_scalar(self) -> bool {
        self.samples.table.scalar
    }

    /// The value of a label; empty where it has none.
    pub fn label(self, name: &str) -> &'a str {
        if self.samples.keeps(name) { self.samples.table.label(self.row, name) } else { "" }
    }

    /// Its labels, as the query alone would have given them.
    pub fn labels(self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let (table, row) = (&self.samples.table, self.of_row());
        let names = table.names(row.names).enumerate();
        let cell = move |place| table.cell(row.cells as usize + place);
        let labels = names.map(move |(place, name)| (name, cell(place)));
        labels.filter(move |(name, _)| self.samples.keeps(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples_of(table: Table, query: &str) -> Samples {
        Samples::alone(table.into(), Shape::of(query).into())
    }

    fn samples(query: &str, series: &str) -> Samples {
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{series}]}}}}"#);
        samples_of(Table::read(body.as_bytes()).unwrap(), query)
    }

    fn values(found: impl Iterator<Item = Sampled<'static>>) -> Vec<String> {
        found.map(|sampled| sampled.value().to_string()).collect()
    }

    #[test]
    fn a_query_has_its_own_series_of_a_joined_answer_alone() {
        let series = r#"{"metric":{"pod":"p","a":"1"},"value":[5,"1"]},
            {"metric":{"a":"2","pod":"p"},"value":[5,"2"]},
            {"metric":{"pod":"q","a":"1"},"value":[5,"3"]},
            {"metric":{"a":"1"},"value":[5,"4"]}"#;
        let one = Box::leak(Box::new(samples(r#"sum by (pod) (x{a="1"})"#, series)));
        assert_eq!(values(one.iter()), ["1", "3", "4"]);
        assert_eq!(values(one.by("pod").get("p")), ["1"]);
        assert_eq!(values(one.by("pod").get("")), ["4"]);
        let labels: Vec<_> = one.iter().flat_map(Sampled::labels).collect();
        assert_eq!(labels, [("pod", "p"), ("pod", "q")]);
        // The label that tells it apart is none of its own.
        assert!(values(one.by("a").get("1")).is_empty());
        assert_eq!(values(one.by("a").get("")).len(), 3);
        let several = Box::leak(Box::new(samples(r#"x{pod=~"q|r"}"#, series)));
        assert_eq!(values(several.iter()), ["3"]);
        assert_eq!(several.iter().next().unwrap().labels().count(), 2);
        let all = Box::leak(Box::new(samples("x", series)));
        assert_eq!(values(all.iter()), ["1", "2", "3", "4"]);
    }

    #[test]
    fn indexes_are_few_however_many_label_sets_are_asked_for() {
        let series = |n: usize| {
            let labels = format!(r#""a":"","b":"","c":"","d":"","pod":"p{n}""#);
            format!(r#"{{"metric":{{{labels}}},"value":[1,"{n}"]}}"#)
        };
        let all: Vec<String> = (0..100).map(series).collect();
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{}]}}}}"#, all.join(","));
        let table = Arc::new(Table::read(body.as_bytes()).unwrap());
        // Each has the same form, and other labels of which it asks for one value.
        for several in 0..16 {
            let matcher = |place: usize| match several >> place & 1 {
                1 => format!(r#"{}=~"|x""#, ["a", "b", "c", "d"][place]),
                _ => format!(r#"{}="""#, ["a", "b", "c", "d"][place]),
            };
            let matchers: Vec<String> = (0..4).map(matcher).collect();
            let shape = Shape::of(&format!("x{{{}}}", matchers.join(",")));
            let samples = Samples::alone(table.clone(), shape.into());
            for _ in 0..2 {
                let found: Vec<_> = samples.by("pod").get("p7").map(Sampled::value).collect();
                assert_eq!(found, [Quantity::from_f64(7.0).unwrap()]);
                assert_eq!(samples.iter().count(), 100);
            }
            assert!(table.indexes.lock().unwrap().kept.len() <= INDEXES);
        }
    }

    #[test]
    fn an_answer_takes_no_more_memory_than_there_is_room_for() {
        // Each series with names of its own, which are longer than the values.
        let series = |n: usize| {
            let labels: Vec<_> = (0..20).map(|label| format!(r#""{n}{label}":"""#)).collect();
            format!(r#"{{"metric":{{{}}},"value":[1,"2"]}}"#, labels.join(","))
        };
        let all: Vec<String> = (0..2_000).map(series).collect();
        let body = format!(r#"{{"data":{{"resultType":"vector","result":[{}]}}}}"#, all.join(","));
        let table = Table::read(body.as_bytes()).unwrap();
        assert_eq!(table.series(), 2_000);
        assert!(table.bytes() < 2 * body.len(), "{} of {}", table.bytes(), body.len());
        assert_eq!(table.label(1_999, "199919"), "");
        let room = table.bytes() / 2;
        let mut taken = 0;
        let within = |bytes: usize| {
            taken = bytes;
            if bytes <= room { Ok(()) } else { Err(Error::Memory { limit: room }) }
        };
        let error = Table::read_within(body.as_bytes(), within).unwrap_err();
        assert_eq!(error, Error::Memory { limit: room });
        assert!(taken < 2 * room, "{taken} bytes where {room} are free");
    }

    #[test]
    fn a_scalar_is_a_series_without_labels() {
        let body = br#"{"data":{"resultType":"scalar","result":[1.5,"2"]}}"#;
        let samples = samples_of(Table::read(body).unwrap(), "time()");
        let [one] = samples.iter().collect::<Vec<_>>()[..] else { panic!("not one") };
        assert!(one.is_scalar() && one.labels().next().is_none());
    }
}
