use super::super::tests::made;
use super::*;
use crate::service::cgroup;
use crate::service::command::ServiceDirs;
use crate::service::mount::{Place, cgroup2_mount};
use crate::service::mount_table::DeviceId;
use mainstay_devices::atomic::verdict::Finding;
use mainstay_ha::Step;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

fn answer(atomic: bool) -> Answer {
    let finding = Finding {
        code: "file-cut",
        found: "1 data file with pages that lie in several pieces".into(),
        remedy: "Write the file anew.".into(),
        examples: vec!["/srv/s/t.ibd".into()],
    };
    Answer {
        atomic,
        page: 16384,
        writes: Writes::Direct,
        device: "/dev/loop3".into(),
        file_system: "ext4".into(),
        files: 1,
        pages: 1,
        findings: if atomic { Vec::new() } else { vec![finding] },
        condition: String::new(),
    }
}

/// A service whose process asks about its pages, in a directory that is no mount.
fn asking(dir: &Path, pages: &str, check: Arc<Check>) -> Work {
    let spec = ServiceSpec::parse(&format!(
        "name='s'\nresource='r'\n[mount]\npath='{}/mounted'\n[[process]]\nname='p'\ncommand=['/bin/db']\n\
         pages={{size=16384, arguments=['--once']{pages}}}\n",
        dir.canonicalize().unwrap().display()
    ));
    std::fs::create_dir_all(dir.join("mounted")).unwrap();
    let dirs = ServiceDirs { cgroup: dir.join("cgroup"), logs: dir.join("logs"), log_writer: Vec::new() };
    let mut work = made(dir, &spec.unwrap(), dirs);
    let (first, again, tick) = (Duration::ZERO, Duration::ZERO, Duration::from_millis(5));
    work.pages = PageChecks { known: Mutex::default(), check, first, again, tick };
    work
}

fn start(work: &Work) -> Vec<String> {
    work.page_arguments(&work.spec(), 0, &|| true).unwrap()
}

fn hindrance(work: &Work) -> Option<Hindrance> {
    work.places.hindrances.list(Instant::now()).pop().map(|(_, hindrance, _)| hindrance)
}

#[test]
fn a_process_gets_its_arguments_for_whole_pages_only_after_a_yes() {
    let dir = tempfile::tempdir().unwrap();
    let yes = asking(dir.path(), "", Arc::new(|_, _| Ok(answer(true))));
    assert_eq!(start(&yes), ["--once"]);
    assert_eq!(yes.pages_words(0), " with --once: no page can tear");
    let no = asking(dir.path(), "", Arc::new(|_, _| Ok(answer(false))));
    assert!(start(&no).is_empty());
    let words = no.pages_words(0);
    assert!(words.starts_with(" without --once: 1 data file") && words.ends_with("/srv/s/t.ibd"), "{words}");
    let fails = || AtomicError::NoMount { path: "/srv/s".into() };
    let unseen = asking(dir.path(), "", Arc::new(move |_, _| Err(fails())));
    assert!(start(&unseen).is_empty());
    assert!(unseen.pages_words(0).contains("the check failed: the file system that holds /srv/s"));
    // The check of the kernel's own words: a directory on no device of Mainstay.
    let real = asking(dir.path(), "", Arc::new(check_while));
    assert!(start(&real).is_empty());
    // A finding without a reason is no yes.
    let mute = asking(dir.path(), "", Arc::new(|_, _| Ok(Answer { findings: Vec::new(), ..answer(false) })));
    assert!(start(&mute).is_empty());
}

#[test]
fn a_check_that_hangs_counts_as_no_and_keeps_no_start_that_was_called_off() {
    let dir = tempfile::tempdir().unwrap();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let hangs = move |_: &Question, _: &dyn Fn() -> bool| {
        let _ = lock(&released).recv();
        Ok(answer(true))
    };
    let work = asking(dir.path(), ", timeout_s=1", Arc::new(hangs));
    let began = Instant::now();
    assert!(start(&work).is_empty());
    assert!(work.pages_words(0).contains("did not end within 1 s"), "{}", work.pages_words(0));
    assert!(began.elapsed() < LONG);
    let called_off = work.page_arguments(&work.spec(), 0, &|| false).unwrap_err();
    assert_eq!(called_off, CALLED_OFF);
    drop(release);
}

#[test]
fn a_check_that_is_too_slow_ends_between_two_files() {
    let dir = tempfile::tempdir().unwrap();
    let slow = |_: &Question, wanted: &dyn Fn() -> bool| {
        while wanted() {
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(AtomicError::GivenUp)
    };
    let work = asking(dir.path(), ", timeout_s=1", Arc::new(slow));
    assert!(start(&work).is_empty());
}

#[test]
fn a_database_without_files_is_asked_about_by_its_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().canonicalize().unwrap().join("mounted/data");
    let asked = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&asked);
    let check = move |question: &Question, _: &dyn Fn() -> bool| {
        lock(&notes).push(question.path.clone());
        Ok(answer(true))
    };
    let work = asking(dir.path(), &format!(", path='{}'", data.display()), Arc::new(check));
    assert_eq!(start(&work), ["--once"]);
    std::fs::create_dir(&data).unwrap();
    assert_eq!(start(&work), ["--once"]);
    assert_eq!(*lock(&asked), [data.parent().unwrap().to_owned(), data]);
}

/// A process that is noted as running, with what its checks say one after the other.
struct Runs {
    work: Arc<Work>,
    events: std::sync::mpsc::Receiver<Event>,
    _dir: tempfile::TempDir,
}

fn runs(pages: &str, mut answers: Vec<Result<Answer, AtomicError>>) -> Runs {
    let dir = tempfile::tempdir().unwrap();
    answers.reverse();
    let answers = Mutex::new(answers);
    let check =
        move |_: &Question, _: &dyn Fn() -> bool| lock(&answers).pop().unwrap_or_else(|| Ok(answer(true)));
    let work = Arc::new(asking(dir.path(), pages, Arc::new(check)));
    assert_eq!(start(&work), ["--once"]);
    let note = Note::of(&"the process");
    lock(&work.running).insert(0, note.clone());
    let (told, events) = channel();
    let on_done: OnDone = Arc::new(move |done: Done| told.send(done.event).unwrap_or_default());
    work.watch_pages(0, &note, &on_done);
    Runs { work, events, _dir: dir }
}

#[test]
fn a_process_that_had_its_arguments_and_starts_without_them_is_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let answers = Mutex::new(vec![Ok(answer(false)), Ok(answer(true)), Ok(answer(false))]);
    let work = asking(dir.path(), "", Arc::new(move |_, _| lock(&answers).pop().unwrap()));
    assert!(start(&work).is_empty());
    assert!(!lock(&work.pages.known)[&0].turned, "it never had them");
    assert_eq!(start(&work), ["--once"]);
    // An operator restarts the service before a repeated check has said no.
    assert!(start(&work).is_empty());
    assert!(lock(&work.pages.known)[&0].turned);
}

#[test]
fn a_no_while_the_process_runs_is_told_until_it_is_started_again() {
    let on = runs("", vec![Ok(answer(true)), Ok(answer(false)), Ok(answer(false))]);
    for _ in 0..3 {
        let event = on.events.recv_timeout(LONG).expect("it is told");
        let Event::Outdated { process: 0, why, remedy } = event else { panic!("{event:?}") };
        assert!(why.starts_with("without --once, because pages can tear now: 1 data file"), "{why}");
        assert!(why.ends_with("such as /srv/s/t.ibd"), "{why}");
        assert_eq!(remedy, "Write the file anew.");
    }
    assert!(matches!(hindrance(&on.work), Some(Hindrance::PagesTear { turned: true, relies: true, .. })));
    // The restart: the next start asks anew, and the warning stays.
    lock(&on.work.running).clear();
    assert!(start(&on.work).is_empty());
    assert!(lock(&on.work.pages.known)[&0].turned);
    // A later start that finds all well has the arguments again.
    assert_eq!(start(&on.work), ["--once"]);
    assert!(!lock(&on.work.pages.known)[&0].turned);
    while on.events.recv_timeout(LONG).is_ok() {}
}

#[test]
fn a_running_process_never_gets_the_arguments_back_by_itself() {
    let on = runs("", vec![Ok(answer(true)), Ok(answer(false))]);
    on.events.recv_timeout(LONG).expect("it is told");
    // From here on each check would say yes.
    std::thread::sleep(Duration::from_millis(100));
    on.events.recv_timeout(LONG).expect("it is told again");
    while on.events.try_recv().is_ok() {}
    on.events.recv_timeout(LONG).expect("and again");
    lock(&on.work.running).clear();
}

#[test]
fn one_check_that_cannot_be_made_restarts_no_database_and_three_do() {
    let fails = || Err(AtomicError::NoMount { path: "/srv/s".into() });
    let on = runs("", vec![Ok(answer(true)), fails(), fails(), Ok(answer(true))]);
    assert!(on.events.recv_timeout(SECOND / 2).is_err(), "it recovered in time");
    lock(&on.work.running).clear();
    let on = runs("", vec![Ok(answer(true)), fails(), fails(), fails()]);
    assert!(matches!(on.events.recv_timeout(LONG), Ok(Event::Outdated { .. })));
    lock(&on.work.running).clear();
}

#[test]
fn the_next_agent_knows_what_a_process_was_started_with() {
    let on = runs("", vec![Ok(answer(true)), Ok(answer(false))]);
    on.events.recv_timeout(LONG).expect("it is told");
    let text = serde_json::to_string(&on.work.pages.known()).unwrap();
    let known: BTreeMap<usize, Reliance> = serde_json::from_str(&text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let next = Arc::new(asking(dir.path(), "", Arc::new(|_, _| Ok(answer(true)))));
    next.adopt_pages(known);
    let note = Note::of(&"the process");
    lock(&next.running).insert(0, note.clone());
    let (told, events) = channel();
    let on_done: OnDone = Arc::new(move |done: Done| told.send(done.event).unwrap_or_default());
    next.watch_pages(0, &note, &on_done);
    assert!(matches!(events.recv_timeout(LONG), Ok(Event::Outdated { .. })), "it goes on with it");
    lock(&on.work.running).clear();
    lock(&next.running).clear();
}

/// The words of a command that a shell has written to its log.
fn started(answers: bool) -> Option<String> {
    let root = cgroup2_mount()?.join(format!("mainstay-test-{}-pages-{answers}", std::process::id()));
    if std::fs::create_dir_all(&root).is_err() {
        eprintln!("skipped: no writable cgroup hierarchy of version 2 here");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("mounted");
    std::fs::create_dir(&path).unwrap();
    let none = None::<&str>;
    nix::mount::mount(Some("a test"), &path, Some("tmpfs"), nix::mount::MsFlags::empty(), none).unwrap();
    let spec = ServiceSpec::parse(&format!(
        "name='s'\nresource='r'\n[mount]\npath='{}'\n[[process]]\nname='p'\n\
         command=['sh', '-c', 'echo \"$@\"; exec sleep 1000', 'sh', '--first']\n\
         pages={{size=16384, arguments=['--once']}}\n",
        path.display()
    ));
    let dirs = ServiceDirs { cgroup: root.join("s"), logs: dir.path().join("logs"), log_writer: Vec::new() };
    let mut work = made(dir.path(), &spec.unwrap(), dirs);
    work.pages.check = Arc::new(move |_, _| Ok(answer(answers)));
    let work = Arc::new(work);
    let device = DeviceId::from_number(std::fs::metadata(&path).unwrap().dev());
    work.note(Place { path: path.clone(), device, read_only: false, number: None }).unwrap();
    let on_done: OnDone = Arc::new(|_| {});
    let step = Step::StartProcess { process: 0 };
    let begun = work.run(step, Some(work.processes.number()), &on_done);
    let log = dir.path().join("logs/p.log");
    let deadline = Instant::now() + LONG;
    let written = loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        if text.ends_with('\n') || begun.is_err() || Instant::now() > deadline {
            break text;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(work.stage(step).unwrap().starts_with("started process p with"));
    work.undo(step, Some(work.processes.number()), true, LONG).unwrap();
    nix::mount::umount2(&path, nix::mount::MntFlags::MNT_DETACH).unwrap();
    cgroup::remove(&root.join("s"));
    cgroup::remove(&root);
    assert_eq!(begun, Ok(()));
    Some(written)
}

#[test]
fn the_command_of_a_process_ends_with_its_arguments_for_whole_pages() {
    let Some(with) = started(true) else { return };
    assert_eq!(with, "--first --once\n");
    assert_eq!(started(false).as_deref(), Some("--first\n"));
}
